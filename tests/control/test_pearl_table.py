"""PEARL's table of workers: who holds which GPU, and what events make of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.control.pearl import LATENCIES, PRESETS, Topology
from stretto.control.pearl_plan import Plan, WorkerRole, counts, plan
from stretto.control.pearl_table import (
    Activity,
    Worker,
    WorkerTable,
    apply,
    load,
    reconfigure,
    settle,
    training_begin,
    training_finished,
)
from stretto.kernel.errors import InvariantError

PROPERTY = settings(max_examples=100, derandomize=True)
C, P, D, T = WorkerRole.COLOCATED, WorkerRole.PREFILL, WorkerRole.DECODE, WorkerRole.TRAINING
PROFILE, TIMES = PRESETS["pearl-8b"], LATENCIES["pearl-8b"]
DEDICATED, OVERLAP = 5, 3


def table() -> WorkerTable:
    """Dedicated rollout workers in slots 0-4, a training worker in slot 5 whose GPUs 10-15 the slots 6-8 share."""
    rollout = [Worker(slot, frozenset({2 * slot, 2 * slot + 1}), C) for slot in range(DEDICATED)]
    training = Worker(DEDICATED, frozenset(range(10, 16)), T)
    overlap = [Worker(6 + i, frozenset({10 + 2 * i, 11 + 2 * i}), C) for i in range(OVERLAP)]
    return WorkerTable((*rollout, training, *overlap))


def grown(to: Topology, now_s: float = 0.0, start: WorkerTable | None = None) -> WorkerTable:
    """All that ``to`` needs is active."""
    before = table() if start is None else start
    usable = before.usable(frozenset(range(16)))
    after = apply(before, plan(before.rollout, to, usable), now_s, TIMES)
    return settle(load(after, after.rollout, 0), now_s + 1000, 0)


def test_slots_are_in_order_and_a_gpu_serves_one() -> None:
    with pytest.raises(InvariantError, match="never renumbered"):
        WorkerTable((Worker(1, frozenset({0}), C),))
    twice = [Worker(slot, frozenset({0}), C, Activity.ACTIVE) for slot in (0, 1)]
    for activity in (Activity.ACTIVE, Activity.JOINING, Activity.LEAVING):
        with pytest.raises(InvariantError, match="GPU 0 serves workers 0, 1 at once"):
            WorkerTable((twice[0], replace(twice[1], activity=activity)))
    assert WorkerTable((twice[0], replace(twice[1], activity=Activity.INACTIVE)))


def test_overlap_workers_are_those_on_training_gpus() -> None:
    assert table().overlap == {6, 7, 8}
    assert table().usable(frozenset({0, 1, 2, 10, 11})) == {0, 6}


def test_survivors_keep_their_slots_and_gpus_while_all_else_changes() -> None:
    before = grown(Topology(prefill=2, decode=3))
    left = frozenset({1, 2, 3, 4})
    decision, step = reconfigure(before, left, PROFILE, 64)
    after = apply(before, step, 2000.0, TIMES)
    assert counts(after.rollout) == decision.topology
    assert [(w.slot, w.gpus) for w in after.workers] == [(w.slot, w.gpus) for w in table().workers]
    assert all(after.workers[slot].activity is Activity.ACTIVE for slot in left)


def test_a_plan_applied_twice_changes_nothing() -> None:
    before = grown(Topology(prefill=2, decode=2))
    step = plan(before.rollout, Topology(colocated=3), frozenset({0, 1, 4}))
    once = apply(before, step, 2000.0, TIMES)
    assert apply(once, step, 2001.0, TIMES) == once
    done = settle(load(once, step.add, 0), 3000.0, 0)
    assert apply(done, step, 3000.0, TIMES) == done
    assert not plan(done.rollout, Topology(colocated=3), frozenset({0, 1, 4})).changes(done.rollout)


def test_a_second_decision_on_the_same_budget_plans_nothing() -> None:
    usable = table().usable(frozenset(range(10)))
    _, step = reconfigure(table(), usable, PROFILE, 64)
    after = apply(table(), step, 0.0, TIMES)
    decision, again = reconfigure(after, usable, PROFILE, 64)
    assert decision.why == "keep"
    assert not again.changes(after.rollout)


def test_a_group_is_admitted_whole_when_the_slowest_is_ready_and_holds_the_latest_weights() -> None:
    before = grown(Topology(prefill=1, decode=1))
    joins = apply(before, plan(before.rollout, Topology(prefill=2, decode=2), frozenset({0, 1, 2, 6})), 2000.0, TIMES)
    ready_s = 2000.0 + TIMES.preparation_s + TIMES.finalisation_s
    synced = load(joins, (2, 6), 3)
    assert settle(synced, ready_s - 0.01, 3).admitting.keys() == {0, 1}
    assert settle(joins, ready_s, 3).admitting.keys() == {0, 1}, "they hold no weights"
    assert settle(load(joins, (2,), 3), ready_s, 3).admitting.keys() == {0, 1}, "one of them holds none"
    assert settle(synced, ready_s, 4).admitting.keys() == {0, 1}, "theirs are old"
    assert settle(synced, ready_s, 3).admitting.keys() == {0, 1, 2, 6}


def test_prepared_overlap_workers_need_their_activation_alone() -> None:
    joins = apply(table(), Plan((6, 7), (), {6: P, 7: D}), 0.0, TIMES)
    assert settle(load(joins, (6, 7), 0), TIMES.activation_s, 0).admitting == {6: P, 7: D}


def test_whoever_leaves_takes_no_request_and_holds_its_gpus_until_it_is_gone() -> None:
    before = grown(Topology(colocated=3))
    leaving = apply(before, Plan((), (2,), {0: C, 1: C}), 2000.0, TIMES)
    assert leaving.admitting.keys() == {0, 1}
    assert leaving.workers[2].activity is Activity.LEAVING
    assert settle(leaving, 2000.0 + TIMES.return_s, 0).workers[2].activity is Activity.INACTIVE


@st.composite
def lent(draw: st.DrawFn) -> tuple[WorkerTable, float]:
    """A table in the midst of lending, and when training begins."""
    now_s = draw(st.floats(0, 30))
    activities = st.sampled_from([*Activity])
    found = list(table().workers)
    for slot in (6, 7, 8):
        activity = draw(activities)
        latest = now_s + (TIMES.return_s if activity is Activity.LEAVING else TIMES.activation_s)
        ready_s = draw(st.floats(now_s, latest))
        found[slot] = replace(found[slot], activity=activity, ready_s=ready_s, version=0)
    return WorkerTable(tuple(found)), now_s


@PROPERTY
@given(lent())
def test_no_overlap_worker_is_active_when_the_return_is_over_and_training_runs(
    start: tuple[WorkerTable, float],
) -> None:
    before, now_s = start
    begun = training_begin(before, now_s, TIMES)
    assert not begun.admitting.keys() & begun.overlap
    over = settle(begun, now_s + TIMES.return_s, 0)
    assert all(over.workers[slot].activity is Activity.INACTIVE for slot in over.overlap)
    assert over.workers[5].activity is Activity.ACTIVE


def test_training_that_waits_for_nobody_begins_at_once_and_lends_nothing_until_it_ends() -> None:
    begun = training_begin(table(), 5.0, TIMES)
    assert begun.workers[5].activity is Activity.ACTIVE
    with pytest.raises(InvariantError, match="GPU 10 serves workers 5, 6 at once"):
        apply(begun, Plan((6,), (), {6: C}), 6.0, TIMES)
    apply(training_finished(begun), Plan((6,), (), {6: C}), 6.0, TIMES)


def events() -> Iterator[st.SearchStrategy[tuple[str, frozenset[int]]]]:
    yield st.tuples(st.just("gpus"), st.frozensets(st.integers(0, 9), min_size=2))
    yield st.tuples(st.sampled_from(["training_begin", "training_finished"]), st.just(frozenset()))


@PROPERTY
@given(st.lists(st.one_of(*events()), max_size=25))
def test_any_course_of_events_keeps_roles_slots_and_gpus_in_order(
    course: list[tuple[str, frozenset[int]]],
) -> None:
    now = table()
    gpus, training = frozenset({0, 1}), False
    for number, (kind, given_gpus) in enumerate(course):
        at_s = 100.0 * number
        if kind == "gpus":
            gpus = given_gpus | {0, 1}
        elif kind == "training_begin":
            training, now = True, settle(training_begin(now, at_s, TIMES), at_s + TIMES.return_s, 0)
        else:
            training, now = False, training_finished(now)
        usable = now.usable(gpus if training else gpus | now.workers[5].gpus)
        decision, step = reconfigure(now, usable, PROFILE, 64)
        now = apply(now, step, at_s + TIMES.return_s, TIMES)
        assert counts(now.rollout) == decision.topology
        assert decision.topology.workers == len(usable)
        now = settle(load(now, now.rollout, number), at_s + 99, number)
        assert now.admitting == now.rollout
        assert [(w.slot, w.gpus) for w in now.workers] == [(w.slot, w.gpus) for w in table().workers]
