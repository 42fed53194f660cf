"""The hard lag bound without dropping: the rules alone, no loop."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from stretto.control.admission import DemandAdmission
from stretto.control.batch import DemandBatch
from stretto.control.demand import deadline, may_start, room
from stretto.control.view import View

from .drive import Drive, complete, end_step, lose, start_step, submit, view_of

RUNS = 1000
NEWEST = (0.0, 0.3, 0.7, 1.0)


@dataclass(frozen=True)
class WeakBatch:
    """The obvious weaker rule: wait only for groups whose deadline is now."""

    def form(self, view: View) -> Sequence[int] | None:
        due = [g for g in view.running.values() if deadline(view, g.version) <= view.version]
        if due or len(view.ready) < view.batch:
            return None
        return [i for _, i in sorted((g.version, g.id) for g in view.ready.values())[: view.batch]]


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_no_breach_no_deadlock_and_the_bound_is_reached_for_any_completion_order(k: int) -> None:
    worst = 0
    for seed in range(RUNS):
        drive = Drive(seed, k - 1, 1 + seed % 4, 2 * k + 2, newest=NEWEST[seed // 4 % 4]).run()
        assert not drive.stuck, f"seed {seed}"
        assert drive.max_lag <= k - 1, f"seed {seed}: lag {drive.max_lag}"
        assert not drive.view.open, f"seed {seed}: work is left over"
        worst = max(worst, drive.max_lag)
    assert worst == k - 1


@pytest.mark.parametrize("k", [2, 3, 5])
def test_engines_that_lag_lost_groups_and_rare_publishes_keep_the_bound(k: int) -> None:
    worst = 0
    for seed in range(RUNS // 2):
        drive = Drive(
            seed, k - 1, 1 + seed % 4, 2 * k + 1, newest=NEWEST[seed // 4 % 4], engines=1 + seed % 3, lag=0.8,
            lost=0.15, every_k=1 + seed % k,
        ).run()  # fmt: skip
        assert not drive.stuck, f"seed {seed}"
        assert drive.max_lag <= k - 1, f"seed {seed}: lag {drive.max_lag}"
        assert drive.view.open == 0, f"seed {seed}: work is left over at the end"
        assert drive.view.ledger["trained"] == drive.view.batch * drive.max_steps
        worst = max(worst, drive.max_lag)
    assert worst == k - 1


def test_depth_lowers_the_lag_and_leaves_the_bound() -> None:
    """A2: two keys."""
    worst = []
    for depth in (0.0, 1.0, 4.0):
        runs = [Drive(seed, 4, 2, 8, depth=depth, newest=1.0).run() for seed in range(100)]
        assert not any(drive.stuck for drive in runs)
        assert max(drive.max_lag for drive in runs) <= 4
        worst.append(sum(drive.max_lag for drive in runs) / len(runs))
    assert worst[0] < worst[1] < worst[2]


def counterexample() -> View:
    """K = 3, B = 1, up to u = 1: d is ready, b and c of version 0 still run."""
    view = view_of(lag_bound=2, batch=1)
    a, b, c, d = range(4)
    for group in (a, b, c):
        assert DemandAdmission().decide(view, 0) > 0
        submit(view, group, 0)
    assert DemandAdmission().decide(view, 0) == 0, "the cap is K B"
    complete(view, a)
    assert DemandBatch().form(view) == [a]
    start_step(view, [a])
    end_step(view)
    view({"e": "Loaded", "t": 0.0, "worker": "engine-0", "version": 1})
    submit(view, d, 1)
    complete(view, d)
    return view


def test_the_weak_rule_trains_the_newcomer_and_ours_waits() -> None:
    view = counterexample()
    assert WeakBatch().form(view) == [3]
    assert DemandBatch().form(view) is None
    complete(view, 2)
    assert DemandBatch().form(view) == [2], "the oldest trains as soon as it is there"


def test_the_weak_rule_breaks_the_bound_in_the_counterexample() -> None:
    view = counterexample()
    start_step(view, WeakBatch().form(view) or [])
    end_step(view)
    complete(view, 1)
    complete(view, 2)
    start_step(view, [1])
    end_step(view)
    assert WeakBatch().form(view) == [2]
    assert view.version - view.ready[2].version == 3, "lag 3 with L = 2"


@pytest.mark.parametrize(("k", "breaks"), [(2, False), (3, True), (5, True)])
def test_the_weak_rule_is_safe_for_two_versions_and_breaks_beyond(k: int, breaks: bool) -> None:
    breaches = 0
    for seed in range(200):
        cap = CapAdmission(k)
        drive = Drive(seed, k - 1, 1 + seed % 4, 3 * k + 2, batch_rule=WeakBatch(), admission=cap, newest=1.0,
                      prompt=True).run()  # fmt: skip
        breaches += drive.max_lag > k - 1
    assert (breaches > 0) is breaks


@dataclass(frozen=True)
class CapAdmission:
    """The cap alone, until the last steps."""

    k: int

    def decide(self, view: View, version: int) -> int:
        outstanding = len(view.running) + len(view.ready) + len(view.training)
        left = (view.max_steps - view.version) * view.batch
        return min(self.k * view.batch, left) - outstanding


def test_with_prompt_publishes_admission_is_the_cap() -> None:
    for lag_bound, batch in [(0, 3), (1, 2), (4, 5)]:
        view = view_of(lag_bound=lag_bound, batch=batch)
        assert DemandAdmission().decide(view, 0) == (lag_bound + 1) * batch
        for group in range(batch):
            submit(view, group, 0)
            complete(view, group)
        start_step(view, list(range(batch)))
        assert DemandAdmission().decide(view, 0) == lag_bound * batch, "the batch in training counts"


def test_a_lost_group_gives_its_place_back_at_once() -> None:
    view = view_of(lag_bound=1, batch=2)
    for group in range(4):
        submit(view, group, 0)
    assert room(view, 0) == 0
    lose(view, 3)
    assert room(view, 0) == 1
    complete(view, 2)
    lose(view, 2, "filtered")
    assert room(view, 0) == 2


def test_the_last_steps_admit_no_more_than_they_can_train() -> None:
    view = view_of(lag_bound=5, batch=3, max_steps=2)
    assert DemandAdmission().decide(view, 0) == 6


def test_an_engine_too_old_for_any_step_gets_no_work() -> None:
    view = view_of(lag_bound=1, batch=1)
    for group in range(2):
        submit(view, group, 0)
        complete(view, group)
        start_step(view, [group])
        end_step(view)
    assert view.version == 2
    assert room(view, 0) == 0
    assert room(view, 2) > 0


def test_may_start_refuses_exactly_the_batches_that_would_break_a_deadline() -> None:
    view = view_of(lag_bound=1, batch=2)
    for group in range(4):
        submit(view, group, 0)
    assert may_start(view, [0, 0])
    assert not may_start(view, [0]), "three left over for one later step of two"


def test_rules_are_pure() -> None:
    for seed in range(20):
        view = Drive(seed, 2, 2, 4, newest=0.5).run().view
        submit(view, 9_000, view.version)
        before = snapshot(view)
        for rule in (DemandBatch().form, WeakBatch().form):
            assert rule(view) == rule(view)
        assert DemandAdmission().decide(view, 3) == DemandAdmission().decide(view, 3)
        assert snapshot(view) == before


def snapshot(view: View) -> object:
    state = {name: value for name, value in vars(view).items() if name != "_handlers"}
    return copy.deepcopy(state)
