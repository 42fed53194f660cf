"""Correcting engine mismatch and staleness apart, by the trainer's log-probabilities at each token's own version; and
PPO-EWMA, which stands an average of policies in for them."""

from __future__ import annotations

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

from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get
from stretto.objectives.ewma import Ewma, beta_of_lag, lag_of_beta, rescaled_beta

WIDE = {"clip_low": 1.0, "clip_high": 1e9}
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("decoupled-ppo", {"reference": "old", "correction": "truncate"}),
    ("decoupled-ppo", {"reference": "old", "correction": "mask"}),
    ("decoupled-ppo", {"reference": "old", "correction": "none"}),
    ("ppo-ewma", {}),
]


@pytest.mark.parametrize(("name", "options"), METHODS)
def test_the_rules_of_all_methods(name: str, options: dict[str, Any]) -> None:
    obeys_the_rules(name, options)
    autograd_agrees_with_finite_differences(name, options)
    unit_ratio_is_the_policy_gradient(name, options)


@pytest.mark.parametrize("correction", ["drop", "mask", "truncate", "none"])
def test_old_equal_to_behaviour_is_ppo(correction: str) -> None:
    batch, logp = stale_batch()
    batch = batch.replace(logp_old=batch.logp_behavior)
    a = some_advantages(logp)
    plain, plain_grad = gradient(get("ppo"), batch, logp, a)
    loss, grad = gradient(get("decoupled-ppo", reference="old", correction=correction), batch, logp, a)
    assert torch.equal(loss.total, plain.total)
    assert torch.equal(grad, plain_grad)


def test_old_equal_to_proximal_is_areals_decoupled_ppo() -> None:
    batch, logp = stale_batch()
    batch = batch.replace(logp_old=batch.logp_proximal)
    a = some_advantages(logp)
    areal, areal_grad = gradient(get("decoupled-ppo"), batch, logp, a)
    loss, grad = gradient(get("decoupled-ppo", reference="old"), batch, logp, a)
    assert torch.equal(loss.total, areal.total)
    assert torch.equal(grad, areal_grad)


def test_without_clip_and_cap_the_loss_does_not_depend_on_old_but_the_clipped_gradient_does() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    other = batch.replace(logp_old=batch.logp_old + 0.3 * some_advantages(logp, 9))
    free = get("decoupled-ppo", reference="old", correction="none", **WIDE)
    loss, grad = gradient(free, batch, logp, a)
    again, again_grad = gradient(free, other, logp, a)
    assert again.total.item() == pytest.approx(loss.total.item(), abs=1e-12)
    assert torch.allclose(again_grad, grad, atol=1e-12, rtol=0)
    whole = torch.where(batch.mask, -(logp - batch.logp_behavior).exp() * a, 0.0) / batch.mask.sum()
    assert torch.allclose(grad, whole, atol=1e-12, rtol=0)
    clipped = get("decoupled-ppo", reference="old", correction="none")
    one, two = (gradient(clipped, b, logp, a)[1] for b in (batch, other))
    assert not torch.equal(one == 0, two == 0)


def test_defaults_of_the_caps_are_each_corrections_own() -> None:
    """AReaL drops above 5; truncation and the mask end at 2, as TIS and MIS do."""
    logp = torch.full((1, 4), -1.0, dtype=torch.float64)
    x = torch.tensor([[0.4, 1.0, 3.0, 6.0]], dtype=torch.float64)
    batch = (
        stale_batch()[0]
        .select(torch.arange(1), 4)
        .replace(mask=torch.ones(1, 4, dtype=torch.bool), logp_old=logp, logp_behavior=logp - x.log())
    )
    expected = {"drop": [0.4, 1, 3, 0], "mask": [0, 1, 0, 0], "truncate": [0.4, 1, 2, 2], "none": [0.4, 1, 3, 6]}
    for correction, weights in expected.items():
        _, grad = gradient(
            get("decoupled-ppo", reference="old", correction=correction), batch, logp, torch.ones_like(logp)
        )
        assert (-4 * grad)[0].tolist() == pytest.approx(weights, abs=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9])
def test_a_log_linear_proxy_only_moves_the_bounds_of_the_clip(alpha: float) -> None:
    """rho = r^(1 - alpha), so a clip of e on rho is one on r at (1 -+ e)^(1 / (1 - alpha))."""
    batch, logp = stale_batch(scale=0.8)
    a = some_advantages(logp)
    proxy = batch.logp_behavior + alpha * (logp - batch.logp_behavior)
    r, rho = (logp - batch.logp_behavior).exp(), (logp - proxy).exp()
    assert torch.allclose(rho, r ** (1 - alpha), atol=1e-12)
    e, power = 0.2, 1 / (1 - alpha)
    decoupled = get("decoupled-ppo", reference="old", correction="none")
    moved = get("ppo", clip_low=1 - (1 - e) ** power, clip_high=(1 + e) ** power - 1)
    grad = gradient(decoupled, batch.replace(logp_old=proxy), logp, a)[1]
    assert torch.allclose(grad, gradient(moved, batch, logp, a)[1], atol=1e-12, rtol=0)
    assert alpha > 0.5 or bool((grad[batch.mask] == 0).any())


def ppo_ewma_as_written(batch: Any, logp: torch.Tensor, a: torch.Tensor, e: float) -> torch.Tensor:
    average, m = batch.logp_old, batch.mask
    adj = torch.maximum(batch.logp_behavior, logp.detach() - math.log(100))
    first = -a * (logp - adj).exp()
    second = -a * ((logp - average).clamp(math.log(1 - e), math.log(1 + e)) + average - adj).exp()
    return torch.maximum(first, second)[m].sum() / m.sum()


@pytest.mark.parametrize("scale", [0.2, 0.8, 4.0])
def test_ppo_ewma_is_its_formula(scale: float) -> None:
    batch, logp = stale_batch(scale=scale)
    a = some_advantages(logp)
    leaf = logp.clone().requires_grad_()
    expected = ppo_ewma_as_written(batch, leaf, a, 0.2)
    (expected_grad,) = torch.autograd.grad(expected, leaf)
    loss, grad = gradient(get("ppo-ewma"), batch, logp, a)
    assert loss.total.item() == pytest.approx(expected.item(), abs=1e-12)
    assert torch.allclose(grad, expected_grad, atol=1e-12, rtol=0)


def test_ppo_ewma_caps_the_ratio_to_the_behaviour() -> None:
    logp = torch.full((1, 2), -1.0, dtype=torch.float64)
    behavior = logp - torch.tensor([[math.log(50), math.log(5000)]], dtype=torch.float64)
    batch = (
        stale_batch()[0]
        .select(torch.arange(1), 2)
        .replace(mask=torch.ones(1, 2, dtype=torch.bool), logp_behavior=behavior, logp_old=logp)
    )
    loss, grad = gradient(get("ppo-ewma"), batch, logp, torch.ones_like(logp))
    assert (-2 * grad)[0].tolist() == pytest.approx([50, 100], abs=1e-9)
    assert loss.metrics["gate/capped_tokens"] == 0.5


def test_quadrants_are_ppos_when_the_average_is_the_behaviour() -> None:
    assert quadrants("ppo-ewma", {}) == pytest.approx([0, 0.2, 3.0, 0], abs=1e-12)
    assert quadrants("decoupled-ppo", {"reference": "old"}) == pytest.approx([0, 0.2, 3.0, 0], abs=1e-12)


def test_an_average_without_memory_is_the_current_policy_and_nothing_is_clipped() -> None:
    batch, logp = stale_batch()
    average = Ewma(0.0, [torch.zeros_like(logp)])
    average.update([logp])
    assert torch.equal(average.average[0], logp)
    a = some_advantages(logp)
    loss, grad = gradient(get("ppo-ewma"), batch.replace(logp_old=average.average[0]), logp, a)
    assert loss.metrics["ppo/clip_fraction"] == 0
    weighted = -(logp - batch.logp_behavior).exp() * a / batch.mask.sum()
    assert torch.allclose(grad, torch.where(batch.mask, weighted, 0.0), atol=1e-14, rtol=0)


def test_full_memory_is_the_running_mean_and_before_any_update_the_first_weights() -> None:
    g = torch.Generator().manual_seed(0)
    path = [torch.randn(3, 2, generator=g, dtype=torch.float64) for _ in range(6)]
    average = Ewma(1.0, path[:1])
    assert torch.equal(average.average[0], path[0])
    for k, x in enumerate(path[1:], 2):
        average.update([x])
        assert torch.allclose(average.average[0], torch.stack(path[:k]).mean(0), atol=1e-12)


def test_on_a_straight_path_the_average_is_the_snapshot_one_lag_ago() -> None:
    u = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    features = torch.tensor([[0.3, 0.1, -1.0], [1.0, 0.2, 0.4]], dtype=torch.float64)
    average = Ewma(0.8, [0 * u])
    for t in range(1, 201):
        average.update([t * u])
        lag = lag_of_beta(0.8, t)
        assert torch.allclose(average.average[0], (t - lag) * u, atol=1e-9)
    assert lag == pytest.approx(4.0, abs=1e-9)
    snapshot = torch.log_softmax(features @ ((200 - 4) * u), 0)
    assert torch.allclose(torch.log_softmax(features @ average.average[0], 0), snapshot, atol=1e-9)


def test_betas_follow_the_lag_and_the_batch_size() -> None:
    assert beta_of_lag(4) == pytest.approx(0.8)
    assert beta_of_lag(0) == 0
    assert lag_of_beta(beta_of_lag(7.5)) == pytest.approx(7.5)
    assert lag_of_beta(1.0) == math.inf
    assert lag_of_beta(rescaled_beta(0.8, 4)) == pytest.approx(16)
    assert rescaled_beta(1.0, 4) == 1


def test_reduced_precision_is_averaged_in_float32_and_shapes_are_checked() -> None:
    average = Ewma(0.999, [torch.ones(4, dtype=torch.bfloat16)])
    for _ in range(3):
        average.update([torch.ones(4, dtype=torch.bfloat16)])
    assert average.average[0].dtype == torch.float32
    assert torch.allclose(average.average[0], torch.ones(4), atol=1e-6)
    with pytest.raises(DataError, match="number or shapes"):
        average.update([torch.ones(3)])
    with pytest.raises(DataError, match="number or shapes"):
        average.update([])
    with pytest.raises(ConfigError, match="beta"):
        Ewma(1.1, [])
    with pytest.raises(ConfigError, match="lag"):
        beta_of_lag(-1)


def test_needs_and_options() -> None:
    assert get("ppo-ewma").needs == {"old"}
    assert get("decoupled-ppo", reference="old").needs == {"old"}
    for options in ({"cap": 0.5}, {"reference": "behavior"}, {"dual_clip": 3.0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            get("ppo-ewma", **options)
    batch, logp = stale_batch()
    with pytest.raises(DataError, match="logp_old is missing"):
        get("ppo-ewma")(batch.replace(logp_old=None), logp)
