"""SAO: the strict two-sided interval, and length-adaptive GAE that skips observations."""

from __future__ import annotations

import math

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
from stretto.objectives.sao import two_sided
from stretto.objectives.temporal import gae


def test_the_rules_of_all_methods() -> None:
    obeys_the_rules("sao", {})
    obeys_the_rules("sao", {"e_l": 0.8, "e_h": 3.0, "alpha": None, "gae_lambda": 0.9})
    unit_ratio_is_the_policy_gradient("sao", {})
    unit_ratio_is_the_policy_gradient("sao", {"baseline": "group"})


def test_both_ends_are_excluded() -> None:
    r = torch.tensor([0.75, 0.8, 1.0, 4.9, 5.0, 6.0], dtype=torch.float64)
    assert two_sided(r, 0.25, 4.0).tolist() == [0, 0.8, 1.0, 4.9, 0, 0]


def test_outside_the_interval_nothing_moves_for_either_sign() -> None:
    assert quadrants("sao", {}, high=7.0, low=0.5) == [0, 0, 0, 0]
    assert quadrants("ppo", {}, high=7.0, low=0.5) == pytest.approx([0, 0.5, 7, 0])
    assert quadrants("sao", {}, high=5.9, low=0.71) == pytest.approx([5.9, 0.71, 5.9, 0.71])


def test_a_full_interval_is_plain_importance_sampling() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    objective = get("sao", e_l=1, e_h=math.inf)
    loss, grad = gradient(objective, batch, logp, a)
    r = (logp - batch.logp_behavior).exp()
    torch.testing.assert_close(grad, torch.where(batch.mask, -r * a, 0.0) / batch.mask.sum(), rtol=0, atol=1e-14)
    assert loss.metrics["gate/kept_tokens"] == 1
    for i, t in batch.mask.nonzero().tolist():  # the gradient of -r A
        ends = [float(-(logp[i, t] + e - batch.logp_behavior[i, t]).exp() * a[i, t]) for e in (1e-6, -1e-6)]
        assert (ends[0] - ends[1]) / 2e-6 / float(batch.mask.sum()) == pytest.approx(float(grad[i, t]), abs=1e-8)


def test_an_empty_interval_is_flat() -> None:
    autograd_agrees_with_finite_differences("sao", {"e_l": 0.0, "e_h": 0.0})


def tokens(ratios: list[float]) -> tuple[TokenBatch, Tensor]:
    logp = torch.full((1, len(ratios)), -1.0, dtype=torch.float64)
    behavior = logp - torch.tensor([ratios], dtype=torch.float64).log()
    return TokenBatch(mask=torch.ones(1, len(ratios), dtype=torch.bool), logp_behavior=behavior), logp


def test_rejected_tokens_stay_in_the_denominator() -> None:
    batch, logp = tokens([0.9, 1.2])
    alone = get("sao")(batch, logp, advantages=torch.tensor([1.0]))
    batch, logp = tokens([0.9, 1.2, 9.0, 0.1, 9.0])
    more = get("sao")(batch, logp, advantages=torch.tensor([1.0]))
    assert float(more.total) == pytest.approx(float(alone.total) * 2 / 5, abs=1e-12)
    assert more.metrics["gate/kept_tokens"] == pytest.approx(2 / 5)


def test_advantages_use_the_lambda_of_the_rows_length_and_targets_use_one() -> None:
    batch, _ = stale_batch()
    objective = get("sao")
    assert objective.needs == {"values"}
    lam = (1 - 1 / (1.5 * batch.mask.sum(1).clamp(min=1).double())).clamp(min=0)
    torch.testing.assert_close(objective.advantages(batch), gae(batch, 1.0, lam), rtol=0, atol=1e-12)
    one = torch.where(batch.mask, batch.values + gae(batch, 1.0, 1.0), 0.0)
    torch.testing.assert_close(objective.targets(batch), one, rtol=0, atol=1e-12)
    fixed = get("sao", alpha=None, gae_lambda=0.9).advantages(batch)
    torch.testing.assert_close(fixed, gae(batch, 1.0, 0.9), rtol=0, atol=1e-12)


def test_a_one_token_response_has_lambda_a_third_and_it_does_not_matter() -> None:
    batch = TokenBatch(
        mask=torch.ones(1, 1, dtype=torch.bool), rewards=torch.tensor([[2.0]]), values=torch.tensor([[0.5]])
    )
    assert get("sao").advantages(batch).tolist() == [[1.5]]


def test_inserted_observations_leave_advantages_alone() -> None:
    g = torch.Generator().manual_seed(0)
    values, rewards = torch.randn(2, 1, 6, generator=g, dtype=torch.float64)
    plain = TokenBatch(mask=torch.ones(1, 6, dtype=torch.bool), values=values, rewards=rewards)
    mask = torch.tensor([[False, True, True, False, False, True, True, True, False, True]])

    def spread(x: Tensor) -> Tensor:
        return torch.full((1, 10), math.nan, dtype=torch.float64).masked_scatter(mask, x)

    turns = TokenBatch(mask=mask, values=spread(values), rewards=spread(rewards))
    a = get("sao").advantages(turns)
    assert torch.equal(a[mask], get("sao").advantages(plain)[0])
    assert bool((a[~mask] == 0).all())


def test_options_that_make_no_sense_are_refused() -> None:
    for wrong in ({"e_l": 1.5}, {"e_h": -1}, {"alpha": 0}):
        with pytest.raises(ConfigError, match="sao"):
            get("sao", **wrong)
