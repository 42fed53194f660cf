"""V-trace actor-critic: the truncated ratio on the score, and what its targets converge to."""

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

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.objectives.temporal import gae, vtrace


def test_the_rules_of_all_methods() -> None:
    obeys_the_rules("vtrace", {})
    obeys_the_rules("vtrace", {"rho_bar": 1.5, "c_bar": 0.9, "gamma": 0.95, "gae_lambda": 0.9})
    unit_ratio_is_the_policy_gradient("vtrace", {})


def test_the_weight_is_the_truncated_ratio() -> None:
    assert quadrants("vtrace", {}) == pytest.approx([1, 0.2, 1, 0.2])
    assert quadrants("vtrace", {"rho_bar": 10.0}) == pytest.approx([3, 0.2, 3, 0.2])
    batch, logp = stale_batch()
    a = some_advantages(logp)
    loss, grad = gradient(get("vtrace"), batch, logp, a)
    r = (logp - batch.logp_behavior).exp()
    expected = torch.where(batch.mask, -r.clamp(max=1) * a, 0.0) / batch.mask.sum()
    torch.testing.assert_close(grad, expected, rtol=0, atol=1e-14)
    clipped = float((batch.mask & (r > 1)).sum() / batch.mask.sum())
    assert loss.metrics["ratio/clipped_fraction"] == pytest.approx(clipped)


def test_plain_importance_sampling_agrees_with_finite_differences_of_the_ratio() -> None:
    """With rho_bar open the score form has the gradient of -r A."""
    batch, logp = stale_batch()
    a = some_advantages(logp)
    _, grad = gradient(get("vtrace", rho_bar=1e9), batch, logp, a)
    for i, t in batch.mask.nonzero().tolist():
        ends = [float(-(logp[i, t] + e - batch.logp_behavior[i, t]).exp() * a[i, t]) for e in (1e-6, -1e-6)]
        assert (ends[0] - ends[1]) / 2e-6 / float(batch.mask.sum()) == pytest.approx(float(grad[i, t]), abs=1e-8)
    fresh = {"rho_bar": 1e-9}  # a constant weight: the loss is linear in logp
    autograd_agrees_with_finite_differences("vtrace", fresh)


def test_targets_and_advantages_are_the_estimators_at_the_start_of_the_step() -> None:
    batch, logp = stale_batch()
    objective = get("vtrace", gamma=0.9, gae_lambda=0.8)
    w = torch.where(batch.mask, logp - batch.logp_behavior, 0.0).exp()
    targets, advantages = vtrace(batch, w, 1, 1, 0.9, 0.8)
    assert torch.equal(objective.targets(batch, logp), targets)
    assert torch.equal(objective.advantages(batch, logp), advantages)
    assert torch.equal(objective.advantages(batch.replace(logp_proximal=logp)), advantages)
    on_policy = get("vtrace", gamma=0.9).advantages(batch.replace(logp_behavior=logp), logp)
    torch.testing.assert_close(on_policy, gae(batch, 0.9, 1.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho_bar", [0.8, 1.0, 1.5, 1e9])
def test_the_fixed_point_is_the_value_of_the_truncated_policy(rho_bar: float) -> None:
    """One decision: E_mu[target] = V iff V is the value of the policy proportional to min(rho_bar mu, pi)."""
    g = torch.Generator().manual_seed(0)
    mu, pi = torch.randn(2, 5, generator=g, dtype=torch.float64).softmax(1)
    reward = torch.randn(5, generator=g, dtype=torch.float64)
    between = torch.minimum(rho_bar * mu, pi)
    value = (between * reward).sum() / between.sum()
    batch = TokenBatch(
        mask=torch.ones(5, 1, dtype=torch.bool), rewards=reward[:, None], values=value.expand(5, 1).clone()
    )
    targets, _ = vtrace(batch, (pi / mu)[:, None], rho_bar, 1.0, 1.0, 1.0)
    assert float((mu * targets[:, 0]).sum()) == pytest.approx(float(value), abs=1e-12)
    moved = batch.replace(values=batch.values + 0.1)
    targets, _ = vtrace(moved, (pi / mu)[:, None], rho_bar, 1.0, 1.0, 1.0)
    assert float((mu * targets[:, 0]).sum()) < float(value) + 0.1 - 1e-3


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"rho_bar": 0}, {"c_bar": -1}, {"critic_gae_lambda": 1.0}, {"baseline": "group"}, {"std": True}):
        with pytest.raises(ConfigError, match="vtrace"):
            get("vtrace", **wrong)
