"""ASymPO and SPO: losses of responses on one scale, without the behaviour's probabilities."""

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
)
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives import get


def responses(losses: list[float], tokens: int = 3) -> tuple[TokenBatch, Tensor]:
    """One group whose responses have these mean negative log-probabilities, unevenly spread over the tokens."""
    spread = torch.linspace(0.5, 1.5, tokens, dtype=torch.float64)
    logp = -torch.tensor(losses, dtype=torch.float64)[:, None] * spread
    mask = torch.ones_like(logp, dtype=torch.bool)
    return TokenBatch(mask=mask, group=torch.zeros(len(losses)).long()), logp


@pytest.mark.parametrize(
    ("name", "options"), [("asympo", {}), ("asympo", {"floor": 1.0}), ("spo", {}), ("spo", {"c": 0.0})]
)
def test_the_rules_of_all_methods(name: str, options: dict[str, Any]) -> None:
    obeys_the_rules(name, options)


def test_golden_values() -> None:
    batch, logp = responses([0.5, 2, 4])
    a = torch.tensor([1, 1, -2], dtype=torch.float64)
    assert get("spo", c=1.0)(batch, logp, None, a).total.item() == pytest.approx(-1.83333, abs=1e-5)
    assert get("asympo")(batch, logp, None, a).total.item() == pytest.approx(0, abs=1e-9)
    expected = (0.5 + 2 - 0.2 * 2 * 4) / 3
    assert get("spo")(batch, logp, None, a).total.item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("std", [True, False])
def test_the_value_is_zero_for_groups_that_sum_to_zero_and_the_gradient_is_not(std: bool) -> None:
    batch, logp = stale_batch()
    batch = batch.replace(trajectory=None, mask=batch.mask | torch.tensor([[True] + [False] * 5]))  # no row is empty
    loss, grad = gradient(get("asympo", std=std), batch, logp)
    assert loss.total.item() == pytest.approx(0, abs=1e-12)
    assert float(grad.abs().max()) > 0.01


def test_the_gradient_is_that_of_the_log_of_the_loss() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)[:, 0]
    _, grad = gradient(get("asympo"), batch, logp, a)
    leaf = logp.clone().requires_grad_()
    rows = batch.mask.any(1)
    nll = -torch.where(batch.mask, leaf, 0.0).sum(1)[rows] / batch.mask.sum(1)[rows]
    (expected,) = torch.autograd.grad((a[rows] * nll.log()).sum() / batch.rows, leaf)
    assert torch.allclose(grad, expected, atol=1e-14, rtol=0)


def test_equal_losses_are_the_plain_gradient_over_the_loss() -> None:
    batch, logp = responses([0.7] * 4)
    a = torch.tensor([1.0, -0.5, 0.25, -0.75], dtype=torch.float64)
    plain = gradient(get("reinforce", aggregation="seq-mean-token-mean"), batch, logp, a)[1]
    assert torch.allclose(gradient(get("asympo"), batch, logp, a)[1], plain / 0.7, atol=1e-14, rtol=0)


def test_one_scale_for_all_losses_leaves_the_gradient_in_their_logarithm() -> None:
    batch, logp = responses([0.5, 2, 4])
    a = torch.tensor([1, 1, -2], dtype=torch.float64)
    in_log = (gradient(get("asympo"), batch, logp, a)[1] * logp).sum(1)
    for k in (0.01, 3.0, 100.0):
        again = (gradient(get("asympo"), batch, k * logp, a)[1] * k * logp).sum(1)
        assert torch.allclose(again, in_log, atol=1e-12, rtol=0)


@pytest.mark.parametrize("p", [0.3, 0.9, 0.999999])
def test_pressure_on_near_certain_responses_does_not_vanish(p: float) -> None:
    """d log l / d z_y = -(1 - p) / (-log p), which tends to -1 as p tends to 1."""
    z = torch.tensor([math.log(p / (1 - p)), 0.0], dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(z, 0)[:1, None]
    batch = TokenBatch(mask=torch.ones(1, 1, dtype=torch.bool))
    loss = get("asympo")(batch, logp, None, torch.ones(1, dtype=torch.float64))
    (grad,) = torch.autograd.grad(loss.total, z)
    assert float(grad[0]) == pytest.approx(-(1 - p) / -math.log(p), rel=1e-9)
    if p > 0.99999:
        assert float(grad[0]) == pytest.approx(-1, abs=1e-5)
    assert loss.metrics["asympo/pressure/max"] == pytest.approx(1 / -math.log(p))


def test_a_response_of_probability_one_is_bounded_by_the_floor() -> None:
    batch, logp = responses([0.0, 1.0])
    a = torch.tensor([1.0, -1.0], dtype=torch.float64)
    loss, grad = gradient(get("asympo"), batch, logp, a)
    assert loss.total.item() == pytest.approx(-0.5)
    assert grad[0].tolist() == pytest.approx([-1e6 / 6] * 3)


def test_spo_of_one_is_the_plain_gradient_and_of_zero_keeps_the_good_alone() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    plain = gradient(get("reinforce", aggregation="seq-mean-token-mean"), batch, logp, a)[1]
    assert torch.equal(gradient(get("spo", c=1.0), batch, logp, a)[1], plain)
    assert torch.equal(gradient(get("spo", c=0.0), batch, logp, a)[1], torch.where(a > 0, plain, 0.0))
    assert torch.allclose(
        gradient(get("spo"), batch, logp, a)[1], torch.where(a > 0, plain, 0.2 * plain), atol=1e-15, rtol=0
    )
    autograd_agrees_with_finite_differences("spo", {})


def test_ratios_play_no_part() -> None:
    assert quadrants("spo", {}) == pytest.approx([1, 1, 0.2, 0.2], abs=1e-12)
    assert quadrants("asympo", {}) == pytest.approx([0.5] * 4, abs=1e-12)  # each token costs 2 nats
    for name in ("asympo", "spo"):
        batch, logp = stale_batch()
        bare = batch.replace(logp_behavior=None, versions=None)
        assert torch.equal(get(name)(bare, logp).total, get(name)(batch, logp).total)
        assert get(name).needs == set()


def test_the_scales_of_good_and_bad_responses_are_logged() -> None:
    batch, logp = responses([0.5, 2, 4])
    m = get("spo")(batch, logp, None, torch.tensor([1, 1, -2], dtype=torch.float64)).metrics
    assert m["nll/positive"] == pytest.approx(1.25)
    assert m["nll/negative"] == pytest.approx(4)


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="floor"):
        get("asympo", floor=0.0)
    with pytest.raises(ConfigError, match="negative_scale"):
        get("spo", c=-0.1)
