"""The queue of late rewards: conservation, each id at most once, expiry, the columns of a step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.data.batch import TokenBatch
from stretto.data.columns import pack
from stretto.data.trajectory import Trajectory
from stretto.kernel.errors import InvariantError
from stretto.pool.group import Group
from stretto.pool.late import FRESH, DelayedRewards, PendingReward, with_late


def trajectory(id: int, reward: float = 0.5, n: int = 2) -> Trajectory:
    mask = np.r_[False, np.ones(n, bool)]
    return Trajectory(id, id // 2, np.arange(n + 1, dtype=np.int32), mask, np.full(n + 1, id, np.int32),
                      np.full(n + 1, -1.0), np.ones(n + 1), reward, late=True)  # fmt: skip


def queue_of(*ids: int, lifetime: int = 50) -> DelayedRewards:
    queue = DelayedRewards(lifetime)
    for id in ids:
        queue.add(PendingReward(trajectory(id), id, 0.0))
    return queue


def group_of(*ids: int) -> Group:
    """What a step trained."""
    return Group.of(0, [trajectory(id) for id in ids], 0, 0)


def returned(queue: DelayedRewards, fresh: list[int], version: int) -> list[int]:
    out = [p.trajectory.id for p in queue.take(fresh).returned]
    queue.step_ended([group_of(*fresh)], version)
    return out


@settings(max_examples=100)
@given(st.data())
def test_every_promise_ends_once_whatever_happens(data: st.DataObject) -> None:
    """Promised = in time + returned + dropped + pending after any event, against a model that keeps the id's fate."""
    lifetime = data.draw(st.integers(0, 4))
    queue, version = DelayedRewards(lifetime), 0
    fate: dict[int, str] = {}
    trained: dict[int, int] = {}
    matured: set[int] = set()
    fresh_ids = iter(range(10_000))

    def pending() -> set[int]:
        return {id for id, f in fate.items() if f == "pending"}

    for _ in range(data.draw(st.integers(1, 40))):
        event = data.draw(st.sampled_from(["promise", "promise", "mature", "mature", "drop", "step", "step", "skip"]))
        some = [*sorted(pending()), 10_001]  # and one that nobody knows
        if event == "promise":
            id = next(fresh_ids)
            queue.add(PendingReward(trajectory(id), id, 0.0))
            fate[id] = "pending"
        elif event == "mature":
            id = data.draw(st.sampled_from(some))
            if id in matured:
                with pytest.raises(InvariantError, match="twice"):
                    queue.mature(id, 1.0)
            else:
                assert queue.mature(id, float(id)) == (id in pending())
                matured |= {id} & pending()
        elif event == "drop":
            ids = data.draw(st.lists(st.sampled_from(some), unique=True))
            assert queue.drop(ids) == [id for id in ids if id in pending()]
            fate |= dict.fromkeys(pending() & set(ids), "dropped")
        else:
            old = {id for id in pending() if id in trained and version - trained[id] > lifetime}
            assert queue.expire(version) == sorted(old)
            fate |= dict.fromkeys(old, "dropped")
            candidates = sorted(pending() - trained.keys())
            fresh = data.draw(st.lists(st.sampled_from(candidates), unique=True)) if candidates else []
            taken = queue.take(fresh)
            assert taken.in_time == {id: float(id) for id in sorted(set(fresh) & matured)}
            back = sorted(pending() & matured & trained.keys())
            assert [p.trajectory.id for p in taken.returned] == back
            assert all(version - p.trained_at <= lifetime and p.trained_at == trained[p.trajectory.id]
                       for p in taken.returned)  # fmt: skip
            assert queue.counts["pending"] == len(pending()), "what is in a step is pending until it ends"
            if event == "step":
                queue.step_ended([group_of(*fresh)], version)
                fate |= dict.fromkeys(taken.in_time, "in_time") | dict.fromkeys(back, "returned")
                trained |= dict.fromkeys(fresh, version)
                version += 1
            else:
                gone = {*fresh, *back}
                assert set(queue.step_failed(fresh)) == gone
                fate |= dict.fromkeys(gone, "dropped")
        counts = queue.counts
        assert counts == {
            "promised": len(fate),
            **{end: sum(f == end for f in fate.values()) for end in ("in_time", "returned", "dropped", "pending")},
        }
        assert counts["promised"] == sum(counts.values()) - counts["promised"]
        assert [p.trajectory.id for p in queue.pending()] == sorted(pending())


def test_a_reward_for_nobody_is_skipped_and_shifts_no_other() -> None:
    queue = queue_of(1, 2, 3)
    assert returned(queue, [1, 2, 3], 0) == []
    queue.drop([2])
    assert [queue.mature(id, 10.0 * id) for id in (1, 2, 3)] == [True, False, True]
    taken = queue.take([])
    assert [(p.trajectory.id, p.reward) for p in taken.returned] == [(1, 10.0), (3, 30.0)]


def test_a_reward_comes_back_in_the_next_step_and_never_again() -> None:
    queue = queue_of(7)
    assert returned(queue, [7], 3) == []
    assert returned(queue, [], 4) == []
    queue.mature(7, 1.0)
    assert returned(queue, [], 5) == [7]
    assert returned(queue, [], 6) == []
    assert not queue.mature(7, 1.0)
    assert queue.counts == {"promised": 1, "in_time": 0, "returned": 1, "dropped": 0, "pending": 0}


@pytest.mark.parametrize(("version", "expired"), [(53, []), (54, [4])])
def test_beyond_its_lifetime_a_reward_is_dropped_matured_or_not(version: int, expired: list[int]) -> None:
    for matured in (True, False):
        queue = queue_of(4)
        returned(queue, [4], 3)
        if matured:
            queue.mature(4, 1.0)
        assert queue.expire(version) == expired


def test_what_has_not_trained_does_not_age() -> None:
    queue = queue_of(4, lifetime=0)
    assert queue.expire(99) == []


def test_a_second_promise_of_one_trajectory_is_an_error() -> None:
    with pytest.raises(InvariantError, match="second late reward"):
        queue_of(4, 4)


def test_the_columns_of_a_step_hold_fresh_rows_then_those_that_come_back() -> None:
    queue = queue_of(5, 2, 10, 11)
    returned(queue, [5, 2], 0)
    for id in (5, 2, 11):
        queue.mature(id, id / 10)
    columns = with_late(pack([trajectory(10), trajectory(11, n=4)]), queue.take([10, 11]))
    batch = TokenBatch.from_columns(columns, 3, torch.float64)
    assert batch.trajectory is not None
    assert batch.trajectory.tolist() == [10, 11, 2, 5]
    assert batch.trained_at is not None
    assert batch.trained_at.tolist() == [FRESH, FRESH, 0, 0]
    assert batch.reward_fast is not None
    assert batch.reward_fast.tolist() == [0.5] * 4
    assert batch.reward_slow is not None
    np.testing.assert_array_equal(batch.reward_slow.numpy(), [np.nan, 1.1, 0.2, 0.5])
    assert batch.step_totals().tokens == 2 + 4 + 2 + 2, "denominators count all rows"
    assert batch.step_totals().rows == 4


def test_without_late_rewards_the_columns_still_say_so() -> None:
    batch = TokenBatch.from_columns(with_late(pack([trajectory(1)]), DelayedRewards(5).take([1])), 0)
    assert batch.trained_at is not None
    assert batch.trained_at.tolist() == [FRESH]
    assert batch.reward_slow is not None
    assert bool(batch.reward_slow.isnan().all())
