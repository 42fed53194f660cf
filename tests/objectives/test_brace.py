"""BRACE: the anchored window in targets and advantages, whitening, PPO's actor."""

from __future__ import annotations

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
from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.objectives.brace import whitened
from stretto.objectives.temporal import brace


def row(values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def golden() -> tuple[TokenBatch, Tensor]:
    logp = row([-1.0, -2.0, -1.5])
    batch = TokenBatch(
        mask=torch.ones(1, 3, dtype=torch.bool), rewards=row([0, 0, 1]), values=row([0.2, 0.4, 0.5]),
        logp_behavior=logp - row([0.5, 1.5, 3.0]).log(),
    )  # fmt: skip
    return batch, logp


def test_the_rules_of_all_methods() -> None:
    obeys_the_rules("brace", {})
    obeys_the_rules("brace", {"k": 2, "gamma": 0.9, "gae_lambda": 0.8, "whitening": False})
    autograd_agrees_with_finite_differences("brace", {})
    unit_ratio_is_the_policy_gradient("brace", {})


@pytest.mark.parametrize(("k", "g", "a"), [(0, [1, 1, 1], [0.8, 0.6, 0.5]), (2, [0.635, 1.07, 1], [0.87, 0.6, 0.5]),
                                           (100, [0.635, 1.07, 1], [0.87, 0.6, 0.5])])  # fmt: skip
def test_golden_targets_and_advantages(k: int, g: list[float], a: list[float]) -> None:
    batch, logp = golden()
    objective = get("brace", k=k, whitening=False)
    assert objective.targets(batch, logp)[0].tolist() == pytest.approx(g, abs=1e-9)
    assert objective.advantages(batch, logp)[0].tolist() == pytest.approx(a, abs=1e-9)
    white = get("brace", k=k).advantages(batch, logp)[0]
    centred = torch.tensor(a, dtype=torch.float64) - sum(a) / 3
    expected = centred / (centred.square().mean() + 1e-8).sqrt()
    torch.testing.assert_close(white, expected, rtol=0, atol=1e-9)


def test_the_published_defaults() -> None:
    objective = get("brace")
    assert (objective.k, objective.rho_bar, objective.c_bar, objective.gamma, objective.gae_lambda) == (
        100,
        1.2,
        1.1,
        1,
        1,
    )
    assert (objective.clip_low, objective.clip_high, objective.value_clip, objective.std) == (0.2, 0.28, 0.5, True)
    assert objective.needs == {"values", "start"}
    assert get("brace", reference="proximal").needs == {"values", "start", "proximal"}


@pytest.mark.parametrize("k", [0, 1, 3, 100])
def test_a_fresh_batch_regresses_on_the_return(k: int) -> None:
    batch, logp = stale_batch()
    targets = get("brace", k=k).targets(batch.replace(logp_behavior=logp), logp)
    totals = torch.where(batch.mask, batch.rewards, 0.0).sum(1, keepdim=True)
    torch.testing.assert_close(targets, torch.where(batch.mask, totals, 0.0), rtol=0, atol=1e-12)


def test_k_counts_policy_tokens() -> None:
    batch, logp = golden()
    wide = torch.tensor([[False, True, False, False, True, False, True]])

    def spread(x: Tensor) -> Tensor:
        return torch.full((1, 7), float("nan")).double().masked_scatter(wide, x)

    tools = TokenBatch(mask=wide, rewards=spread(batch.rewards), values=spread(batch.values),
                       logp_behavior=spread(batch.logp_behavior))  # fmt: skip
    for k in (0, 1, 2):
        objective = get("brace", k=k)
        assert torch.equal(objective.targets(tools, spread(logp))[wide], objective.targets(batch, logp)[0])


def test_the_actor_is_ppo_clip_on_ready_advantages() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    ppo, ppo_grad = gradient(get("ppo", clip_low=0.2, clip_high=0.28), batch, logp, a)
    loss, grad = gradient(get("brace"), batch, logp, a)
    assert torch.equal(loss.policy, ppo.policy)
    assert torch.equal(grad, ppo_grad)
    assert quadrants("brace", {}) == pytest.approx([0, 0.2, 3, 0])


def test_the_critic_regresses_on_the_corrected_targets_with_the_value_clip() -> None:
    batch, logp = golden()
    values = row([1.5, 0.5, 0.5]).requires_grad_()
    loss = get("brace")(batch, logp, values)
    goal = row([0.635, 1.07, 1.0])
    error = torch.maximum((values - goal).square(), (row([0.7, 0.5, 0.5]) - goal).square())
    assert loss.critic.item() == pytest.approx(0.5 * error.mean().item(), abs=1e-9)


def test_inside_the_window_the_residual_vanishes_at_the_value_of_the_truncated_policy() -> None:
    """E_mu[rho delta | s] = 0 iff V is the value of the policy proportional to min(rho_bar mu, pi). Two tokens; the
    second is sure, so its residual is exact and only the first one's is left in the target."""
    g = torch.Generator().manual_seed(2)
    mu, pi = torch.randn(2, 4, generator=g, dtype=torch.float64).softmax(1)
    reward = torch.randn(4, generator=g, dtype=torch.float64)
    between = torch.minimum(1.2 * mu, pi)
    for value, fixed in ((float((between * reward).sum() / between.sum()), True), (float((mu * reward).sum()), False)):
        batch = TokenBatch(
            mask=torch.ones(4, 2, dtype=torch.bool), rewards=torch.stack([torch.zeros(4).double(), reward], 1),
            values=torch.stack([torch.full((4,), value, dtype=torch.float64), reward], 1),
        )  # fmt: skip
        w = torch.stack([pi / mu, torch.ones(4).double()], 1)
        drift = float((mu * brace(batch, w, 1, 1.2, 1.1, 1, 1)[0][:, 0]).sum()) - value
        assert (abs(drift) < 1e-12) == fixed
        anchored = float((mu * brace(batch, w, 0, 1.2, 1.1, 1, 1)[0][:, 0]).sum())
        assert anchored == pytest.approx(float((mu * reward).sum()), abs=1e-12)  # Monte Carlo: the behaviour's value


def test_whitening_over_policy_tokens() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False]])
    white = whitened(torch.tensor([[1.0, 3.0, float("nan")], [5.0, 100.0, float("nan")]]), mask)
    assert float(white[mask].mean()) == pytest.approx(0, abs=1e-7)
    assert float(white[mask].square().mean()) == pytest.approx(1, abs=1e-6)
    assert white[~mask].tolist() == [0, 0, 0]
    assert whitened(torch.full((2, 3), 4.0), mask).abs().max() == 0
    assert whitened(torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.bool)).numel() == 0


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"k": -1}, {"rho_bar": 0}, {"c_bar": 0}, {"critic_gae_lambda": 1.0}, {"baseline": "group"}):
        with pytest.raises(ConfigError, match="brace"):
            get("brace", **wrong)
