"""TokenBatch: shapes, padding, micro-batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.data.totals import Totals
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import DataError, InvariantError


def trajectory(id: int, prompt: int, n: int, reward: float | None = 1.0) -> Trajectory:
    length = prompt + n
    return Trajectory(
        id=id,
        group=id // 2,
        tokens=np.arange(length, dtype=np.int32) + 100 * id,
        mask=np.arange(length) >= prompt,
        versions=np.full(length, 3, np.int32),
        logprobs=-np.arange(length, dtype=np.float32),
        entropy=np.ones(length, np.float32),
        reward=reward,
        records={"top_ids": np.arange(length * 2, dtype=np.int32).reshape(length, 2)},
    )


def test_columns_become_right_padded_rows() -> None:
    batch = TokenBatch.from_columns(pack([trajectory(0, 2, 3), trajectory(1, 1, 1)]), 4, torch.float64)
    assert batch.tokens is not None
    assert batch.tokens.tolist() == [[0, 1, 2, 3, 4], [100, 101, 0, 0, 0]]
    assert batch.mask.tolist() == [[False, False, True, True, True], [False, True, False, False, False]]
    assert batch.rewards is not None
    assert batch.rewards.tolist() == [[0, 0, 0, 0, 1], [0, 1, 0, 0, 0]]
    assert batch.rewards.dtype == torch.float64
    assert batch.length is not None
    assert batch.length.tolist() == [5, 2]
    assert batch.version == 4
    assert batch.top_tokens is not None
    assert not batch.records, "what an engine records has a field of its own"
    assert batch.top_tokens.shape == (2, 5, 2)
    assert batch.top_tokens[1].tolist() == [[0, 1], [2, 3], [0, 0], [0, 0], [0, 0]]


def test_a_trajectory_without_reward_never_trains() -> None:
    with pytest.raises(InvariantError, match="trajectory 1 trains without a reward"):
        TokenBatch.from_columns(pack([trajectory(0, 2, 3), trajectory(1, 1, 1, None)]), 0)


def test_wrong_shapes_are_named() -> None:
    mask = torch.ones(2, 3, dtype=torch.bool)
    with pytest.raises(DataError, match=r"logp_behavior must be \[2, 3\].*\[2, 4\]"):
        TokenBatch(mask=mask, logp_behavior=torch.zeros(2, 4))
    with pytest.raises(DataError, match=r"group must be \[2\]"):
        TokenBatch(mask=mask, group=torch.zeros(3))
    with pytest.raises(DataError, match="mask must be bool"):
        TokenBatch(mask=torch.ones(2, 3))
    with pytest.raises(DataError, match="entropy is missing"):
        TokenBatch(mask=mask).need("entropy")


@settings(max_examples=60)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 30))
def test_micro_batches_hold_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batch = TokenBatch.from_columns(pack([trajectory(i, 0, n) for i, n in enumerate(lengths)]), 0)
    seen: list[int] = []
    for micro in batch.micro_batches(budget):
        assert micro.rows == 1 or micro.mask.numel() <= budget
        assert micro.length is not None
        assert micro.trajectory is not None
        assert micro.mask.shape[1] == int(micro.length.max())
        assert micro.totals == Totals(sum(lengths), len(lengths), len(lengths))
        assert micro.mask.sum(1).tolist() == [lengths[i] for i in micro.trajectory.tolist()]
        seen += micro.trajectory.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def test_trajectory_module_offers_it_too() -> None:
    from stretto.data import trajectory as module

    assert module.TokenBatch is TokenBatch


def test_micro_batches_keep_the_rows_of_a_trajectory_together() -> None:
    mask = torch.ones(6, 3, dtype=torch.bool)
    batch = TokenBatch(mask=mask, trajectory=torch.tensor([4, 9, 4, 7, 9, 9]))
    parts = [set(rows.tolist()) for rows, _ in batch.split(6)]
    assert sorted(map(sorted, parts)) == [[0, 2], [1, 4, 5], [3]]
    assert batch.step_totals() == Totals(18, 6, 3)
