"""Is a row that is rejected as a whole still a member of its group? Both readings, by hand in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.control.filter import ZeroVariance
from stretto.data.batch import TokenBatch
from stretto.data.variance import all_equal
from stretto.kernel.errors import DataError
from stretto.objectives import get
from stretto.objectives.advantage import group_statistics

REWARDS = (1.0, 3.0, 100.0)
ALL = torch.tensor([1.0, 3.0, 100.0], dtype=torch.float64) - 104 / 3
KEPT = torch.tensor([-1.0, 1.0, 0.0], dtype=torch.float64)


def group_of(rewards: Any, off: Any, tokens: int = 1, dtype: torch.dtype = torch.float64) -> tuple[TokenBatch, Tensor]:
    """One group of rows; row i's log-ratio is ``off[i]`` nats over all its tokens together."""
    rows = len(rewards)
    logp = torch.full((rows, tokens), -1.0, dtype=dtype)
    r = torch.zeros(rows, tokens, dtype=dtype)
    r[:, -1] = torch.tensor(rewards, dtype=dtype)
    behavior = logp - torch.tensor(off, dtype=dtype)[:, None] / tokens
    mask = torch.ones(rows, tokens, dtype=torch.bool)
    return TokenBatch(mask=mask, logp_behavior=behavior, rewards=r, group=torch.zeros(rows, dtype=torch.int64)), logp


def slopes(objective: Any, batch: TokenBatch, logp: Tensor) -> Tensor:
    logp = logp.clone().requires_grad_()
    (grad,) = torch.autograd.grad(objective(batch, logp).total, logp)
    return -grad.sum(1) * batch.rows  # ascent on the row's log-probability, of a mean over rows


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("far", [5.0, -5.0])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mis", {"level": "sequence"}),
        ("mis", {"level": "trajectory"}),
        ("mis", {"level": "geometric", "low": 0.9, "high": 1.1}),
        ("mis", {"baseline_over": "kept", "veto": 0.5, "low": 0.0, "high": 1000.0}),
        ("icepop", {"level": "sequence"}),
        ("icepop", {"level": "geometric", "low": 0.9, "high": 1.1}),
        ("tic-grpo", {"variant": "tic_zero", "baseline_over": "kept"}),
    ],
)
def test_a_rejected_row_decides_no_sign(name: str, options: dict[str, Any], far: float, tokens: int) -> None:
    if (far > 0 and "veto" in options) or (far < 0 and name == "tic-grpo"):
        pytest.skip("a one-sided gate, on the other side")
    batch, logp = group_of(REWARDS, (0.0, 0.0, far), tokens)
    objective = get(name, std=False, aggregation="seq-mean-token-mean", **options)
    assert objective.advantages(batch, logp)[:, 0].tolist() == pytest.approx(KEPT.tolist(), abs=1e-12)
    assert slopes(objective, batch, logp).tolist() == pytest.approx(KEPT.tolist(), abs=1e-12)
    whole = get(name, std=False, aggregation="seq-mean-token-mean", **options | {"baseline_over": "all"})
    assert whole.advantages(batch)[:, 0].tolist() == pytest.approx(ALL.tolist(), abs=1e-12)
    assert slopes(whole, batch, logp).tolist() == pytest.approx([*ALL[:2].tolist(), 0.0], abs=1e-12)


def test_both_readings_of_deviations_and_of_the_mean_of_the_others() -> None:
    """Rewards 1, 3, 5 and 100 rejected: kept mean 3, deviation sqrt(8/3), others' means 4, 3, 2."""
    batch, logp = group_of((1.0, 3.0, 5.0, 100.0), (0.0, 0.0, 0.0, 5.0))
    mis = {"level": "sequence"}
    unit = 2 / (math.sqrt(8 / 3) + 1e-6)
    assert get("mis", **mis).advantages(batch, logp)[:, 0].tolist() == pytest.approx([-unit, 0, unit, 0], abs=1e-12)
    loo = get("mis", baseline="leave-one-out", std=False, **mis)
    assert loo.advantages(batch, logp)[:, 0].tolist() == pytest.approx([-3, 0, 3, 0], abs=1e-12)
    returns = get("mis", baseline="none", **mis)
    assert returns.advantages(batch, logp)[:3, 0].tolist() == pytest.approx([-unit, 0, unit], abs=1e-12)


def test_who_is_dropped_by_its_advantage_is_dropped_from_the_second_baseline() -> None:
    """OPSM: row 3 (A < 0, 2 nats less likely) goes; the others' baseline is 34.67 - or 4 without it."""
    batch, logp = group_of((3.0, 5.0, 0.0), (0.0, 0.0, -2.0))
    published = get("grpo", opsm_delta=1.0, std=False)
    assert published.needs == frozenset()
    assert published.advantages(batch)[:, 0].tolist() == pytest.approx([1 / 3, 7 / 3, -8 / 3], abs=1e-12)
    kept = get("grpo", opsm_delta=1.0, std=False, baseline_over="kept")
    assert kept.advantages(batch, logp)[:, 0].tolist() == pytest.approx([-1, 1, 0], abs=1e-12)
    assert slopes(kept, batch, logp).tolist() == pytest.approx([-1, 1, 0], abs=1e-12)


def test_one_row_left_has_nothing_to_be_compared_with_and_a_row_of_several_keeps_its_trajectory() -> None:
    batch, logp = group_of(REWARDS, (0.0, 5.0, 5.0))
    assert get("mis", level="sequence").advantages(batch, logp).abs().sum() == 0
    turns = batch.replace(trajectory=torch.tensor([0, 1, 1]))  # rewards 1 and 103; one row of the second is kept
    turns = turns.replace(logp_behavior=logp - torch.tensor([[0.0], [0.0], [5.0]]))
    assert get("mis", level="sequence", std=False).advantages(turns, logp)[:, 0].tolist() == [-51.0, 51.0, 51.0]
    with pytest.raises(DataError, match="several groups"):
        group_statistics(turns.replace(group=torch.tensor([0, 0, 1])))


def test_what_needs_the_policy_at_the_start_says_so() -> None:
    assert get("mis").needs == frozenset()
    assert get("mis", level="sequence").needs == {"gate"}
    assert get("mis", level="sequence", baseline_over="all").needs == frozenset()
    assert get("mis", level="sequence", baseline="none", std=False).needs == frozenset()
    assert "baseline_over" in get("icepop", level="token").idle
    batch, _ = group_of(REWARDS, (0.0, 0.0, 5.0))
    with pytest.raises(DataError, match="give logp, or set baseline_over"):
        get("mis", level="sequence").advantages(batch)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rewards", "equal"),
    [
        ((0.3, 0.1 + 0.2), True),
        ((0.1 * 3, 0.3, 0.6 - 0.3), True),
        ((1e6, 1e6 * (1 + 1e-9)), True),
        ((0.0, -0.0), True),
        ((0.0, 0.3 - (0.1 + 0.2), 0.0), True),
        ((-0.3, -(0.1 + 0.2)), True),
        ((0.0, 1e-9), False),
        ((1e-9, 2e-9), False),
        ((-1e-9, 1e-9), False),
        ((1.0, 1.0001), False),
        ((-1.0, 1.0), False),
    ],
)
def test_filter_learner_and_metrics_ask_one_question(rewards: Any, equal: bool, dtype: torch.dtype) -> None:
    batch, _ = group_of(rewards, (0.0,) * len(rewards), dtype=dtype)
    assert bool(group_statistics(batch).constant[0]) is equal
    assert (get("grpo").advantages(batch).abs().sum() == 0) == equal
    assert (ZeroVariance().drop(rewards) is not None) is equal
    assert all_equal(min(rewards), max(rewards)) is equal


def test_rewards_that_overflow_their_difference_are_not_equal() -> None:
    assert not all_equal(-1e308, 1e308)
    assert not bool(all_equal(torch.tensor(-3e38), torch.tensor(3e38)))
    assert all_equal(1e308, 1e308)
    assert not all_equal(0.0, math.inf)
    assert not all_equal(math.nan, math.nan)
