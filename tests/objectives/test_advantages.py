"""Advantage estimators, aggregation and the critic loss: exact small cases."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives import get
from stretto.objectives.advantage import group_advantages, group_statistics
from stretto.objectives.aggregate import aggregate
from stretto.objectives.loss import critic_loss
from stretto.objectives.temporal import discounted_returns, gae


def doubles(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def grouped(rewards: list[float], group: list[int]) -> TokenBatch:
    return TokenBatch(
        mask=torch.ones(len(rewards), 1, dtype=torch.bool), rewards=doubles(rewards)[:, None], group=torch.tensor(group)
    )


def test_group_baselines_by_hand() -> None:
    batch = grouped([1, 0, 0, 1, 5, 2, 2], [7, 7, 7, 7, 3, 9, 9])
    a = group_advantages(batch, std=True)[:, 0].tolist()
    assert a == pytest.approx([0.5 / 0.500001, -0.5 / 0.500001, -0.5 / 0.500001, 0.5 / 0.500001, 0, 0, 0], abs=1e-12)
    assert group_advantages(batch, std=False)[:, 0].tolist() == [0.5, -0.5, -0.5, 0.5, 0, 0, 0]
    loo = group_advantages(batch, std=False, leave_one_out=True)[:, 0].tolist()
    assert loo == pytest.approx([1 - 1 / 3, -2 / 3, -2 / 3, 1 - 1 / 3, 0, 0, 0])
    assert sum(loo) == pytest.approx(0, abs=1e-15)


def test_zero_variance_is_judged_per_group_on_valid_raw_rewards() -> None:
    """F2: not on the batch; absent rewards don't count; fewer than two valid ones is a case of its own."""
    third = 0.1 + 0.2  # sums and means of it don't come out even
    batch = grouped([third, third, third, 1, math.nan, 0, math.nan, 1, math.nan], [0, 0, 0, 1, 1, 1, 2, 2, 2])
    statistics = group_statistics(batch)
    assert statistics.constant.tolist() == [True, False, False]
    assert statistics.count.tolist() == [3, 2, 1]
    a = group_advantages(batch, std=True)[:, 0]
    assert a[:3].tolist() == [0, 0, 0]
    assert a[3:6].tolist() == pytest.approx([0.5 / 0.500001, 0, -0.5 / 0.500001])
    assert a[6:].tolist() == [0, 0, 0]


def test_gae_by_hand_runs_over_policy_tokens_only() -> None:
    mask = torch.tensor([[False, True, False, True, True]])
    batch = TokenBatch(mask=mask, values=doubles([[9.0, 1.0, 9.0, 2.0, 4.0]]), rewards=doubles([[0.0, 0, 0, 0, 10]]))
    last = 10 - 4.0
    middle = 0.9 * 4 - 2 + 0.9 * 0.5 * last
    first = 0.9 * 2 - 1 + 0.9 * 0.5 * middle
    assert gae(batch, 0.9, 0.5).tolist()[0] == pytest.approx([0, first, 0, middle, last])
    assert discounted_returns(batch, 0.9).tolist()[0] == pytest.approx([0, 8.1, 0, 9.0, 10.0])


@pytest.mark.parametrize("dirt", [100.0, math.nan, math.inf])
def test_a_critic_value_at_a_masked_slot_does_not_matter(dirt: float) -> None:
    """F10: three tokens, the middle one masked."""
    batch = TokenBatch(
        mask=torch.tensor([[True, False, True]]), values=doubles([[1.0, dirt, 2.0]]), rewards=doubles([[0.0, 0, 3]])
    )
    assert gae(batch, 1.0, 1.0)[0].tolist() == [2.0, 0.0, 1.0]
    assert get("ppo").targets(batch)[0].tolist() == pytest.approx([2.9500000, 0.0, 3.0])


def test_value_t_is_of_the_state_before_token_t() -> None:
    """F11: distinct values; an off-by-one changes every entry."""
    batch = TokenBatch(
        mask=torch.ones(1, 3, dtype=torch.bool), values=doubles([[10.0, 20.0, 40.0]]), rewards=doubles([[1.0, 2, 3]])
    )
    assert gae(batch, 1.0, 0.0)[0].tolist() == [1 + 20 - 10, 2 + 40 - 20, 3 - 40]


def test_trajectories_together_are_exactly_the_trajectories_alone() -> None:
    """F12: nothing bootstraps from another row, whatever the padding."""
    g = torch.Generator().manual_seed(0)
    lengths = [5, 1, 3]
    mask = torch.arange(5) < torch.tensor(lengths)[:, None]
    values, rewards = torch.randn(2, 3, 5, generator=g, dtype=torch.float64)
    rewards = torch.where(mask, rewards, 99.0)
    joined = TokenBatch(mask=mask, values=values, rewards=rewards, length=torch.tensor(lengths))
    for estimate in (lambda b: gae(b, 0.9, 0.7), lambda b: discounted_returns(b, 0.9)):
        together = estimate(joined)
        for i, n in enumerate(lengths):
            alone = TokenBatch(mask=mask[i : i + 1, :n], values=values[i : i + 1, :n], rewards=rewards[i : i + 1, :n])
            assert torch.equal(together[i, :n], estimate(alone)[0])
            assert bool((together[i, n:] == 0).all())


def test_truncation_bootstraps_and_termination_does_not() -> None:
    """F13: the two flags stay apart; a row with both has terminated."""
    batch = TokenBatch(
        mask=torch.ones(4, 2, dtype=torch.bool),
        values=doubles([[1.0, 2.0]] * 4),
        rewards=doubles([[0.0, 1.0]] * 4),
        terminated=torch.tensor([True, False, True, False]),
        truncated=torch.tensor([False, True, True, False]),
        bootstrap=doubles([50.0] * 4),
    )
    assert gae(batch, 1.0, 0.0)[:, 1].tolist() == [-1, 49, -1, -1]
    assert gae(batch, 0.5, 1.0)[:, 0].tolist() == [-0.5, 12.0, -0.5, -0.5]
    assert discounted_returns(batch, 0.5)[:, 0].tolist() == [0.5, 13.0, 0.5, 0.5]


def test_rewards_off_the_policy_move_to_the_policy_token_before() -> None:
    batch = TokenBatch(
        mask=torch.tensor([[False, True, False, True, False, False]]),
        rewards=doubles([[7.0, 1.0, 2.0, 4.0, 8.0, 16.0]]),
        length=torch.tensor([5]),
    )
    assert discounted_returns(batch, 0.0)[0].tolist() == [0, 3, 0, 12, 0, 0]


def test_aggregation_modes_by_hand() -> None:
    mask = torch.tensor([[True, True, True], [True, False, False], [False, False, False]])
    batch = TokenBatch(mask=mask)
    x = doubles([[1.0, 2, 3], [10, math.nan, 7], [5, 5, 5]])
    assert float(aggregate(x, batch, "token-mean")) == pytest.approx(16 / 4)
    assert float(aggregate(x, batch, "seq-mean-token-mean")) == pytest.approx((2 + 10) / 3)
    assert float(aggregate(x, batch, "seq-mean-token-sum")) == pytest.approx(16 / 3)
    assert float(aggregate(x, batch, "const", 8)) == pytest.approx(16 / 24)


def test_critic_loss_with_and_without_value_clip() -> None:
    batch = TokenBatch(mask=torch.tensor([[True, True, False]]), values=doubles([[0.0, 1.0, math.nan]]))
    now = doubles([[0.5, 0.9, math.nan]]).requires_grad_()
    goal = doubles([[1.0, 0.0, 0.0]])
    plain = critic_loss(batch, now, goal)
    assert float(plain.detach()) == pytest.approx(0.5 * (0.25 + 0.81) / 2)
    clipped = critic_loss(batch, now, goal, value_clip=0.2)
    assert float(clipped.detach()) == pytest.approx(0.5 * (0.8**2 + 0.81) / 2)
    (grad,) = torch.autograd.grad(plain, now)
    assert grad[0].tolist() == pytest.approx([-0.25, 0.45, 0])


def test_ready_advantages_may_be_one_per_row() -> None:
    mask = torch.tensor([[True, True], [True, False]])
    logp = doubles([[-1.0, -2.0], [-3.0, -4.0]])
    loss = get("reinforce")(TokenBatch(mask=mask), logp, advantages=doubles([2.0, -1.0]))
    assert float(loss.total) == pytest.approx(-(2 * -1 + 2 * -2 + -1 * -3) / 3)
