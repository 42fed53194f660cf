"""COPC: two coupled corrections, and which of the readings is unbiased."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from stale_rules import (
    autograd_agrees_with_finite_differences,
    gradient,
    obeys_the_rules,
    quadrants,
    some_advantages,
    stale_batch,
    unit_ratio_is_the_policy_gradient,
)
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.objectives.temporal import gae

MODES = ("residual", "continuation", "trace")
RAW = {"clip": (0.0, math.inf), "keep": (0.0, math.inf)}


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def golden(**changes: Any) -> tuple[TokenBatch, Tensor]:
    logp = row([-1.0, -2.0, -1.5])
    batch = TokenBatch(
        mask=torch.ones(1, 3, dtype=torch.bool), rewards=row([0, 0, 1]), values=row([0.2, 0.4, 0.5]),
        logp_behavior=logp - row([0.5, 1.5, 3.0]).log(), group=torch.tensor([0]),
    )  # fmt: skip
    return batch.replace(**changes), logp


@pytest.mark.parametrize("mode", MODES)
def test_the_rules_of_all_methods(mode: str) -> None:
    obeys_the_rules("copc", {"residual_mode": mode})
    unit_ratio_is_the_policy_gradient("copc", {"residual_mode": mode})
    unit_ratio_is_the_policy_gradient("copc", {"ppo_clip": (0.2, 0.2)})
    autograd_agrees_with_finite_differences("copc", {"ppo_clip": (0.2, 0.2)})


def test_the_score_form_is_the_weighted_score() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    _, grad = gradient(get("copc", keep=(0.7, 1.4)), batch, logp, a)
    r = (logp - batch.logp_behavior).exp()
    expected = torch.where(batch.mask & (r >= 0.7) & (r <= 1.4), -r * a, 0.0) / batch.mask.sum()
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("mode", "a"), [("residual", [1.25, 1.15, 1.0]), ("continuation", [1.35, 1.10, 0.5]), ("trace", [1.85, 1.1, 0.5])]
)
def test_golden_advantages_targets_and_mask(mode: str, a: list[float]) -> None:
    batch, logp = golden()
    objective = get("copc", residual_mode=mode, keep=(0.4, 2))
    assert objective.advantages(batch, logp)[0].tolist() == pytest.approx(a, abs=1e-9)
    targets = [1.125, 2.05, 1.5] if mode == "trace" else [1.45, 1.55, 1.5]
    assert objective.targets(batch, logp)[0].tolist() == pytest.approx(targets, abs=1e-9)
    _, grad = gradient(objective, batch, logp)
    assert grad[0].tolist() == pytest.approx([-0.5 * a[0] / 3, -1.5 * a[1] / 3, 0.0], abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_without_staleness_every_mode_is_gae_and_plain_policy_gradient(mode: str) -> None:
    batch, logp = stale_batch()
    fresh = batch.replace(logp_behavior=logp, logp_proximal=None)
    objective = get("copc", residual_mode=mode, gae_lambda=0.8, gamma=0.9, lam_return=0.8)
    expected = gae(batch, 0.9, 0.8)
    torch.testing.assert_close(objective.advantages(fresh, logp), expected, rtol=0, atol=1e-12)
    targets = torch.where(batch.mask, batch.values + expected, 0.0)
    torch.testing.assert_close(objective.targets(fresh, logp), targets, rtol=0, atol=1e-12)
    uncorrected = get("copc", residual_mode=mode, gae_lambda=0.8, gamma=0.9, clip=(1, 1))
    torch.testing.assert_close(uncorrected.advantages(batch, logp), expected, rtol=0, atol=1e-12)


def test_returns_have_a_lambda_of_their_own() -> None:
    batch, logp = stale_batch()
    targets = get("copc", gae_lambda=0.5, clip=(1, 1)).targets(batch, logp)  # lam_return 1
    expected = torch.where(batch.mask, batch.values + gae(batch, 1.0, 1.0), 0.0)
    torch.testing.assert_close(targets, expected, rtol=0, atol=1e-12)


def test_the_advantage_ratio_is_that_at_the_start_of_the_step() -> None:
    batch, logp = golden()
    moved = batch.replace(logp_proximal=logp)
    objective = get("copc")
    assert objective.needs == {"values", "start"}
    assert torch.equal(objective.advantages(moved, logp + 0.3), objective.advantages(batch, logp))
    assert torch.equal(objective.advantages(moved), objective.advantages(batch, logp))
    with pytest.raises(DataError, match="logp_proximal"):
        objective.advantages(batch)


def test_an_open_interval_keeps_all_and_an_empty_one_nothing() -> None:
    batch, logp = golden()
    loss, _ = gradient(get("copc", keep=(0, math.inf)), batch, logp)
    assert loss.metrics["gate/kept_tokens"] == 1
    loss, grad = gradient(get("copc", keep=(2, 1)), batch, logp)
    assert loss.metrics["gate/kept_tokens"] == 0
    assert loss.total.item() == 0
    assert bool((grad == 0).all())


def test_quadrants() -> None:
    assert quadrants("copc", {}) == [0, 0, 0, 0]
    assert quadrants("copc", {"keep": (0.1, 10)}) == pytest.approx([3, 0.2, 3, 0.2])
    assert quadrants("copc", {"keep": (0.1, 10), "ppo_clip": (0.2, 0.2)}) == pytest.approx([0, 0.2, 3, 0])


class Tree:
    """Binary tokens, three of them, a logit for each prefix and token: all trajectories, with their probabilities."""

    def __init__(self, seed: int, drift: float) -> None:
        g = torch.Generator().manual_seed(seed)
        self.paths = torch.tensor(list(itertools.product((0, 1), repeat=3)))

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        base = [draw(2**t, 2) for t in range(3)]
        self.logits = [(b + drift * draw(2**t, 2)).requires_grad_() for t, b in enumerate(base)]
        self.reward = draw(8)
        self.critic = [draw(2**t) for t in range(3)]
        self.mu = self.logp(base)
        self.pi = self.logp(self.logits)

    def prefix(self, t: int) -> Tensor:
        return (self.paths[:, :t] * 2 ** torch.arange(t - 1, -1, -1)).sum(1) if t else torch.zeros(8, dtype=torch.int64)

    def logp(self, logits: list[Tensor]) -> Tensor:
        return torch.stack([logits[t].log_softmax(1)[self.prefix(t), self.paths[:, t]] for t in range(3)], 1)

    def batch(self) -> TokenBatch:
        rewards = torch.zeros(8, 3, dtype=torch.float64)
        rewards[:, -1] = self.reward
        values = torch.stack([self.critic[t][self.prefix(t)] for t in range(3)], 1)
        return TokenBatch(
            mask=torch.ones(8, 3, dtype=torch.bool), rewards=rewards, values=values, logp_behavior=self.mu.detach(),
            group=torch.arange(8),
        )  # fmt: skip

    def estimated(self, **options: Any) -> Tensor:
        """E_mu of the objective's ascent direction, summed over tokens, in all logits."""
        batch, objective = self.batch(), get("copc", **options)
        a = objective.advantages(batch, self.pi.detach())
        chance = self.mu.sum(1).exp().detach()
        total = sum(
            chance[i] * 3 * objective(batch.select(torch.tensor([i])), self.pi[i : i + 1], None, a[i : i + 1]).policy
            for i in range(8)
        )
        return -self.flat(total)

    def target(self) -> Tensor:
        """sum_s d_mu(s) sum_a pi(a) A^pi(s, a) grad log pi(a)."""
        pi = [x.softmax(1).detach() for x in self.logits]
        after, total = self.reward, torch.zeros((), dtype=torch.float64)
        d_mu = [torch.zeros(2**t, dtype=torch.float64) for t in range(3)]
        for t in range(3):
            d_mu[t].index_add_(0, self.prefix(t), self.mu.detach().sum(1).exp())
        for t in (2, 1, 0):
            q = after.view(2**t, 2)
            after = (pi[t] * q).sum(1)
            weight = d_mu[t][:, None] * pi[t] * (q - after[:, None])
            total = total + (weight * self.logits[t].log_softmax(1)).sum()
        return self.flat(total)

    def flat(self, total: Any) -> Tensor:
        grads = torch.autograd.grad(total, self.logits, retain_graph=True)
        return torch.cat([x.flatten() for x in grads])


@pytest.mark.parametrize("seed", range(4))
def test_the_raw_trace_is_exact_for_any_critic_and_the_other_modes_are_not(seed: int) -> None:
    """E_mu[w_t A_t s_t] = E_{s ~ d_mu, a ~ pi}[A^pi s], by enumeration."""
    tree = Tree(seed, drift=1.0)
    target = tree.target()
    torch.testing.assert_close(tree.estimated(residual_mode="trace", **RAW), target, rtol=0, atol=1e-12)
    for mode in ("residual", "continuation"):
        assert float((tree.estimated(residual_mode=mode, **RAW) - target).norm() / target.norm()) > 0.01
    uncorrected = tree.estimated(residual_mode="trace", clip=(1, 1), keep=(0, math.inf))
    assert float((uncorrected - target).norm() / target.norm()) > 0.01


def test_the_two_errors_multiply_and_squared_policy_weights_multiply_advantage_variance() -> None:
    """At the first token of the tree, with a mask and the default clip against raw ratios."""
    tree = Tree(1, drift=1.0)
    batch, pi = tree.batch(), tree.pi.detach()
    chance = tree.mu.sum(1).exp().detach()
    w = (pi - batch.logp_behavior).exp()[:, 0]
    kept = torch.where((w >= 0.7) & (w <= 1.05), w, 0.0)
    a = get("copc", residual_mode="trace", **RAW).advantages(batch, pi)[:, 0]
    clipped = get("copc", residual_mode="trace").advantages(batch, pi)[:, 0]
    first = tree.paths[:, 0]
    s = torch.where(first == 1, 1.0, 0.0).double() - tree.logits[0].detach().softmax(1)[0, 1]

    def mean(x: Tensor) -> float:
        return float((chance * x).sum())

    parts = mean((kept - w) * a * s) + mean(w * (clipped - a) * s) + mean((kept - w) * (clipped - a) * s)
    assert mean(kept * clipped * s) - mean(w * a * s) == pytest.approx(parts, abs=1e-12)
    assert abs(mean((kept - w) * (clipped - a) * s)) > 1e-3

    given = torch.zeros(2, dtype=torch.float64).index_add(0, first, chance)
    average = torch.zeros(2, dtype=torch.float64).index_add(0, first, chance * clipped) / given
    spread = (
        torch.zeros(2, dtype=torch.float64).index_add(0, first, chance * (clipped - average[first]).square()) / given
    )
    inner = mean((w * s).square() * spread[first])
    outer = mean((w * s * average[first]).square()) - mean(w * s * average[first]) ** 2
    total = mean((w * clipped * s).square()) - mean(w * clipped * s) ** 2
    assert total == pytest.approx(inner + outer, abs=1e-12)
    assert inner > 0


def test_thresholds_may_come_as_lists_and_bad_ones_are_refused() -> None:
    assert get("copc", clip=[0.8, 1.25]).clip == (0.8, 1.25)
    for wrong in ({"clip": (2, 1)}, {"keep": (-1, 1)}, {"ppo_clip": (2, 1)}, {"baseline": "group"}, {"std": True}):
        with pytest.raises(ConfigError, match="copc"):
            get("copc", **wrong)
