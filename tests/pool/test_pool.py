"""The pool and the columns in which trajectories move."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.data.columns import pack, pack_completions, unpack, unpack_completions
from stretto.data.trajectory import Completion, Trajectory, Transcript
from stretto.kernel.errors import InvariantError
from stretto.pool.group import Group
from stretto.pool.pool import Pool


def completion(n: int, version: int, finish: str = "stop") -> Completion:
    base = np.arange(n, dtype=np.float64)
    return Completion(
        np.arange(n, dtype=np.int32),
        -base,
        base / 2,
        np.full(n, version, np.int32),
        finish,
        {"sampled": np.ones((n, 3))},
    )


def trajectory(i: int, reward: float | None) -> Trajectory:
    transcript = Transcript(i, i // 10)
    transcript.observe([7, 8])
    transcript.sample(completion(3, 1))
    transcript.observe([9])
    transcript.sample(completion(2 + i % 3, 2, "length"))
    return transcript.finish(reward, terminated=False, truncated=True)


def test_ten_ready_three_taken_seven_remain_in_order() -> None:
    """C9."""
    pool = Pool()
    for i in range(10):
        pool.add(Group.of(i, [], 0, 0))
    assert [g.id for g in pool.take([4, 0, 9])] == [4, 0, 9]
    assert [g.id for g in pool.groups()] == [1, 2, 3, 5, 6, 7, 8]


def test_a_group_enters_once_and_only_what_is_there_can_be_taken() -> None:
    pool = Pool()
    pool.add(Group.of(1, [trajectory(0, 1.0)], 0, 0))
    assert pool.nbytes > 0
    with pytest.raises(InvariantError, match="twice"):
        pool.add(Group.of(1, [], 0, 0))
    with pytest.raises(InvariantError, match=r"\[2\] are not in the pool"):
        pool.take([1, 2])
    assert len(pool) == 1, "a refused take changes nothing"
    pool.take([1])
    assert pool.nbytes == 0


def test_trajectories_survive_the_journey_in_columns() -> None:
    before = [trajectory(i, None if i == 1 else i / 3) for i in range(4)]
    for a, b in zip(before, unpack(pack(before)), strict=True):
        for name in ("id", "group", "reward", "terminated", "truncated", "turns", "version_complete"):
            assert getattr(a, name) == getattr(b, name)
        for name in ("tokens", "mask", "versions", "logprobs", "entropy"):
            assert np.array_equal(getattr(a, name), getattr(b, name))
        assert np.array_equal(a.records["sampled"], b.records["sampled"])
        assert b.rewards is not None
        assert b.rewards.sum() == (a.reward or 0.0)


def test_the_reward_sits_on_the_last_policy_token() -> None:
    columns = pack([trajectory(0, 0.5)])
    assert columns["rewards"].tolist() == [0, 0, 0, 0, 0, 0, 0, 0.5]
    assert columns["mask"].tolist() == [False, False, True, True, True, False, True, True]


def test_completions_survive_the_journey_in_columns() -> None:
    before = [(5, completion(3, 1)), (9, completion(0, 2, "aborted")), (7, completion(2, 2, "length"))]
    for (i, a), (j, b) in zip(before, unpack_completions(pack_completions(before)), strict=True):
        assert i == j
        assert a.finish == b.finish
        assert np.array_equal(a.tokens, b.tokens)
        assert np.array_equal(a.versions, b.versions)
        assert np.array_equal(a.records["sampled"], b.records["sampled"])
    assert unpack_completions(pack_completions([])) == []


def test_a_transcript_hands_out_tokens_that_never_change() -> None:
    transcript = Transcript(0, 0)
    transcript.observe([1, 2, 3])
    early = transcript.tokens()
    for k in range(200):
        transcript.sample(completion(k % 5, 0))
        transcript.observe([k])
    assert early.tolist() == [1, 2, 3]
    expected = [1, 2, 3] + [t for k in range(200) for t in [*range(k % 5), k]]
    assert transcript.tokens().tolist() == expected
    assert transcript.finish(1.0).tokens.tolist() == expected
