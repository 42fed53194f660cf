"""The bytes that the pool counts are those that it keeps alive."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from stretto.data.columns import held_bytes
from stretto.data.schema import actions
from stretto.data.trajectory import Completion, Trajectory, Transcript
from stretto.pool.group import Group
from stretto.pool.late import DelayedRewards, PendingReward
from stretto.pool.pool import Pool

from .test_schema import episode

GROUPS, MEMBERS = 40, 4
WALKER = actions((3,), (2,))


def texts(group: int, length: int = 200, **records: np.ndarray) -> Group:
    return texts_and_members(group, length, **records)[0]


def texts_and_members(group: int, length: int = 200, **records: np.ndarray) -> tuple[Group, list[Trajectory]]:
    """As the loop makes it: members that share a prompt, with completions that are pieces of a longer message."""
    prompt = np.arange(50, dtype=np.int32)
    prompt.flags.writeable = False
    members = []
    for k in range(MEMBERS):
        message = np.zeros(10 * length)  # the columns of many completions: ours is a view into them
        transcript = Transcript(group * MEMBERS + k, group)
        transcript.observe(prompt)
        transcript.sample(
            Completion(
                np.zeros(10 * length, np.int32)[:length],
                message[:length],
                message[length : 2 * length],
                np.full(length, 3, np.int32),
                "stop",
                {name: r[:length] for name, r in records.items()},
            )
        )
        members.append(transcript.finish(0.5, info={"answer": "x" * 1000}, late=k < MEMBERS // 2))
    return Group.of(group, members, 0, 3), members


def recorded(group: int) -> Group:
    many = np.zeros((2000, 20))
    return texts(group, top_logprobs=many, top_ids=many.astype(np.int32))


KINDS: dict[str, Callable[[int], Group]] = {
    "texts": texts,
    "short texts": lambda g: texts(g, 3),
    "records": recorded,
    "observations and actions": lambda g: Group(g, WALKER.pack([episode(k, 30) for k in range(MEMBERS)]), 0, 0, WALKER),
}


def traced(work: Callable[[], object]) -> int:
    """Bytes that are held after ``work``, which keeps what it returns."""
    gc.collect()
    tracemalloc.start()
    try:
        kept = work()
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
        del kept
        return held
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_the_pool_counts_what_it_holds(kind: str) -> None:
    make = KINDS[kind]
    make(0)  # whatever is made once
    pool = Pool(WALKER if kind.startswith("observations") else make(0).schema)

    def fill() -> Pool:
        for g in range(GROUPS):
            pool.add(make(g))
        return pool

    held = traced(fill)
    assert abs(pool.nbytes - held) < 0.1 * held, f"counted {pool.nbytes}, held {held}"
    pool.take([g.id for g in pool.groups()])
    assert pool.nbytes == 0


@pytest.mark.parametrize("length", [3, 200])
@pytest.mark.parametrize("trained", [0, GROUPS // 2, GROUPS])
def test_what_waits_for_late_rewards_counts_too_before_and_after_it_has_trained(trained: int, length: int) -> None:
    texts(0, length)
    pool, queue = Pool(), DelayedRewards(100)

    def fill() -> object:
        for g in range(GROUPS):
            group, members = texts_and_members(g, length)
            for trajectory in members[: MEMBERS // 2]:  # views of their group now, whose other members wait for nothing
                queue.add(PendingReward(trajectory, trajectory.id, 0.0))
            pool.add(group)
        for g in range(trained):
            queue.step_ended(pool.take([g]), g)
        return pool

    held = traced(fill)
    counted = pool.nbytes + queue.nbytes
    assert abs(counted - held) < 0.1 * held, f"counted {counted}, held {held}"
    pool.take([g.id for g in pool.groups()])
    queue.drop(p.trajectory.id for p in queue.pending())
    assert pool.nbytes == queue.nbytes == 0


def test_a_view_counts_what_it_keeps_alive_once() -> None:
    large = np.zeros(10_000)
    columns = {"a": large[:10], "b": large[20:30], "c": np.zeros(5)}
    assert 80_000 < held_bytes(columns) < 81_000
