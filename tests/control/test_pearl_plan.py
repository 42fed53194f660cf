"""PEARL's plan against brute force, and what a shrink does to the trajectories."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.control.pearl import Topology, topologies
from stretto.control.pearl_plan import Plan, WorkerRole, counts, plan, plan_cost, redispatch
from stretto.kernel.errors import InvariantError

PROPERTY = settings(max_examples=100, derandomize=True)
C, P, D = WorkerRole.COLOCATED, WorkerRole.PREFILL, WorkerRole.DECODE
roles = st.sampled_from((C, P, D))


@functools.cache
def orders(target: Topology) -> frozenset[tuple[WorkerRole, ...]]:
    return frozenset(itertools.permutations([C] * target.colocated + [P] * target.prefill + [D] * target.decode))


def least_cost(current: dict[int, WorkerRole], target: Topology, usable: frozenset[int]) -> int:
    """Of all active sets and all ways to give out the roles: who comes, who goes, whose role changes."""
    found = []
    for chosen in itertools.combinations(sorted(usable), target.workers):
        workers = len({*chosen} ^ current.keys())
        for order in orders(target):
            moved = sum(current.get(slot, role) != role for slot, role in zip(chosen, order, strict=True))
            found.append(workers + moved)
    return min(found)


@st.composite
def situations(draw: st.DrawFn, most: int = 6) -> tuple[dict[int, WorkerRole], Topology, frozenset[int]]:
    """Slots with roles, a target, and the slots that it may use: all that the target's size allows."""
    slots = draw(st.integers(1, most))
    current = draw(st.dictionaries(st.integers(0, slots - 1), roles))
    usable = draw(st.frozensets(st.integers(0, slots - 1), min_size=1))
    size = draw(st.integers(1, len(usable)))
    return current, draw(st.sampled_from(list(topologies(size)))), usable


@pytest.mark.parametrize("slots", range(1, 7))
def test_the_plan_costs_the_least_possible_for_every_start_and_target_up_to_six_workers(slots: int) -> None:
    """Starts that differ in nothing but the order of the slots cost the same."""
    everyone = frozenset(range(slots))
    targets = [target for size in range(1, slots + 1) for target in topologies(size)]
    for start in itertools.combinations_with_replacement((None, C, P, D), slots):
        current = {slot: role for slot, role in enumerate(start) if role is not None}
        for target in targets:
            assert sum(plan_cost(current, plan(current, target, everyone))) == least_cost(current, target, everyone)


@PROPERTY
@given(situations())
def test_the_plan_costs_the_least_possible_on_any_usable_slots(
    situation: tuple[dict[int, WorkerRole], Topology, frozenset[int]],
) -> None:
    current, target, usable = situation
    assert sum(plan_cost(current, plan(current, target, usable))) == least_cost(current, target, usable)


@PROPERTY
@given(situations(most=12))
def test_a_plan_attains_the_target_on_usable_slots_and_moves_no_more_than_it_counts(
    situation: tuple[dict[int, WorkerRole], Topology, frozenset[int]],
) -> None:
    current, target, usable = situation
    found = plan(current, target, usable)
    assert counts(found.roles) == target
    assert found.roles.keys() <= usable
    assert {*current} - {*found.remove} | {*found.add} == {*found.roles}
    moved = sum(current[slot] != role for slot, role in found.roles.items() if slot in current)
    assert plan_cost(current, found) == (len(found.add) + len(found.remove), moved)


@PROPERTY
@given(situations(most=12))
def test_a_second_plan_to_the_same_target_changes_nothing(
    situation: tuple[dict[int, WorkerRole], Topology, frozenset[int]],
) -> None:
    current, target, usable = situation
    first = plan(current, target, usable)
    second = plan(first.roles, target, usable)
    assert second == Plan((), (), first.roles)
    assert not second.changes(first.roles)


def test_a_voluntary_shrink_takes_workers_of_roles_that_have_too_many() -> None:
    current = {0: P, 1: P, 2: P, 3: D}
    found = plan(current, Topology(prefill=1, decode=1), frozenset(range(4)))
    assert found == Plan((), (1, 2), {0: P, 3: D})
    assert plan_cost(current, found) == (2, 0)


def test_a_worker_beyond_its_roles_count_fills_a_gap_before_one_is_lost() -> None:
    found = plan({0: P, 1: P, 2: D}, Topology(prefill=1, decode=2), frozenset({0, 1, 2}))
    assert found == Plan((), (), {0: P, 1: D, 2: D})


def test_reclaimed_slots_go_whatever_their_role() -> None:
    found = plan({0: P, 1: D, 2: D}, Topology(colocated=1), frozenset({2, 5}))
    assert found == Plan((), (0, 1), {2: C})


def test_too_few_slots_are_refused() -> None:
    with pytest.raises(InvariantError, match="needs 3 workers, 2 slots"):
        plan({}, Topology(colocated=3), frozenset({0, 1}))


@PROPERTY
@given(situations(most=8), st.lists(st.integers(0, 7), max_size=20))
def test_a_shrink_loses_no_trajectory(
    situation: tuple[dict[int, WorkerRole], Topology, frozenset[int]], at: list[int]
) -> None:
    current, target, usable = situation
    placed = {number: slot for number, slot in enumerate(at) if slot in current}
    found = plan(current, target, usable)
    after = redispatch(placed, current, found)
    assert after.keys() == placed.keys()
    for trajectory, slot in after.items():
        if found.roles.get(placed[trajectory]) is current[placed[trajectory]]:
            assert slot == placed[trajectory], "it has no reason to move"
        else:
            assert found.roles[slot] in (C, P), "its context is prefilled again"


def test_partials_go_to_the_least_loaded_survivor_that_prefills() -> None:
    current = {0: P, 1: P, 2: D, 3: D}
    found = plan(current, Topology(prefill=2, decode=1), frozenset({0, 1, 2, 4}))
    assert redispatch({7: 0, 8: 0, 9: 3, 10: 3, 11: 2}, current, found) == {7: 0, 8: 0, 9: 1, 10: 1, 11: 2}


def test_partials_await_an_added_worker_only_where_no_survivor_prefills() -> None:
    current = {0: P, 1: D}
    found = plan(current, Topology(prefill=1, decode=1), frozenset({1, 2}))
    assert found == Plan((2,), (0,), {1: D, 2: P})
    assert redispatch({5: 0}, current, found) == {5: 2}


def test_trajectories_without_any_worker_are_not_lost_in_silence() -> None:
    with pytest.raises(InvariantError, match="trajectory 5 has nowhere to go on"):
        redispatch({5: 0}, {0: C}, Plan((), (0,), {}))
