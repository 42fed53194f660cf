"""PEARL on GPUs that come and go: the time of a step with it and without, and random courses of preemption.

How the parts make a step is [inferred]: rollout goes on during training on the dedicated workers; what is left when
training ends is finished on those and the training GPUs, if the gate lets them be borrowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stretto.control.pearl import (
    LATENCIES,
    PRESETS,
    Hysteresis,
    ReconfigurationLatencies,
    RolloutProfile,
    Topology,
    decide,
    makespan_s,
    worth_borrowing,
)
from stretto.control.pearl_plan import WorkerRole, counts, plan_cost
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
from stretto.tabular.counter import key, uniforms

RESERVED, PREEMPTIBLE, OVERLAP = 2, 6, 8
"""Workers of two GPUs: 4 GPUs are reserved, up to 12 come and go, 16 train."""
BATCHES = (16, 32, 64, 96, 128)
HOURS = 4
_STREAM = 2609
NONE = Hysteresis(0.0, 0.0)


@dataclass(frozen=True)
class Workload:
    """What is rolled out, and its training, ``train_s`` a step. ``toggle_s``: activation and return."""

    profile: RolloutProfile
    batch: int
    train_s: float
    toggle_s: float

    def period_s(self, dedicated_s: float, full_s: float) -> tuple[float, bool]:
        """Seconds of a step whose rollout takes ``dedicated_s`` on the dedicated workers and ``full_s`` with the
        training GPUs; and whether these are borrowed."""
        left = 1 - min(1.0, self.train_s / dedicated_s)
        if worth_borrowing(left, dedicated_s, full_s, self.toggle_s):
            return self.train_s + self.toggle_s + left * full_s, True
        return max(dedicated_s, self.train_s), False

    def pearl_s(self, workers: int) -> float:
        """A step on so many dedicated workers, each time with the best predicted topology."""
        dedicated, full = (decide(self.profile, self.batch, n, Topology(), NONE) for n in (workers, workers + OVERLAP))
        return self.period_s(dedicated.makespan_s, full.makespan_s)[0]

    def colocated_s(self, workers: int) -> float:
        """The same colocated, without borrowing: RLBoost+ on the dedicated workers, ROLL on the reserved ones."""
        return max(makespan_s(self.profile, self.batch, Topology(colocated=workers)), self.train_s)


def workload(preset: str, batch: int, train_s: float) -> Workload:
    """A preset with its latencies."""
    times = LATENCIES[preset]
    return Workload(PRESETS[preset], batch, train_s, times.activation_s + times.return_s)


def mean_rate(period_s: Callable[[int], float], workers: float) -> float:
    """Steps per second of a segment with so many ``workers`` on average: the rates of the two whole numbers beside it,
    averaged linearly [inferred]."""
    below = math.floor(workers)
    share = workers - below
    return (1 - share) / period_s(below) + (share / period_s(below + 1) if share else 0.0)


@dataclass(frozen=True)
class Replayed:
    """What a random course of preemption showed.

    ``least``: the lowest PEARL/colocated ratio of rates at any time; ``mean``: of the whole course. ``regret_s``: most
    that the gate's choice took longer than the other one. ``broken``: what went against the table's invariants.
    ``borrowed``: how often GPUs were lent, of ``steps`` budgets.
    """

    least: float
    mean: float
    regret_s: float
    broken: tuple[str, ...]
    borrowed: int
    steps: int


def replay(seed: int, hysteresis: Hysteresis) -> Replayed:
    """Four hours in which preemptible workers come and go, each by itself; workload, training time and how fast they
    change are drawn, all by counters of ``seed``."""
    setup = uniforms(key(seed, _STREAM), 4)
    preset = sorted(PRESETS)[int(setup[0] * len(PRESETS))]
    train_s = 20.0 * 30.0 ** float(setup[2])
    run = _Run(workload(preset, BATCHES[int(setup[1] * len(BATCHES))], train_s), LATENCIES[preset], hysteresis)
    now_s, work, baseline = 0.0, 0.0, 0.0
    for until_s, gpus in budgets(seed, 300.0 * 10.0 ** float(setup[3])):
        period_s, colocated_s = run.budget(now_s, gpus)
        run.ratios.append(colocated_s / period_s)
        work, baseline = work + (until_s - now_s) / period_s, baseline + (until_s - now_s) / colocated_s
        now_s = until_s
    least = min(run.ratios)
    return Replayed(least, work / baseline, run.regret_s, tuple(run.broken), run.borrowed, len(run.ratios))


def budgets(seed: int, mean_s: float) -> list[tuple[float, frozenset[int]]]:
    """(end in seconds, dedicated GPUs until then): preemptible workers are there and away for exponential times of mean
    ``mean_s``."""
    turns: list[tuple[float, int]] = []
    end_s = 3600.0 * HOURS
    for worker in range(RESERVED, RESERVED + PREEMPTIBLE):
        draws = uniforms(key(seed, _STREAM + worker), math.ceil(20 * end_s / mean_s))
        at_s = 0.0
        for draw in draws:
            at_s -= mean_s * math.log1p(-float(draw))
            if at_s >= end_s:
                break
            turns.append((at_s, worker))
    there = {*range(RESERVED), *range(RESERVED, RESERVED + PREEMPTIBLE, 2)}
    found = []
    for at_s, worker in sorted([*turns, (end_s, -1)]):
        found.append((at_s, frozenset(gpu for w in there for gpu in (2 * w, 2 * w + 1))))
        there ^= {worker}
    return found


def all_workers() -> WorkerTable:
    """Dedicated workers, one that trains on 16 GPUs, and the overlap workers on these; none is active."""
    dedicated = RESERVED + PREEMPTIBLE
    first = 2 * dedicated
    rollout = [Worker(w, frozenset({2 * w, 2 * w + 1}), WorkerRole.COLOCATED) for w in range(dedicated)]
    training = Worker(dedicated, frozenset(range(first, first + 2 * OVERLAP)), WorkerRole.TRAINING)
    overlap = [Worker(dedicated + 1 + i, frozenset({first + 2 * i, first + 2 * i + 1}), WorkerRole.COLOCATED)
               for i in range(OVERLAP)]  # fmt: skip
    return WorkerTable((*rollout, training, *overlap))


class _Run:
    """The table through one course: for every budget a step of training and rollout, with lending where it pays."""

    def __init__(self, workload: Workload, times: ReconfigurationLatencies, hysteresis: Hysteresis) -> None:
        self.workload, self.times, self.hysteresis = workload, times, hysteresis
        self.table = all_workers()
        self.ratios: list[float] = []
        self.broken: list[str] = []
        self.regret_s, self.borrowed, self.version = 0.0, 0, 0

    def budget(self, now_s: float, gpus: frozenset[int]) -> tuple[float, float]:
        """A step with these dedicated GPUs: seconds that it takes, and that it takes colocated."""
        self.table = training_begin(self.table, now_s, self.times)
        self.table = settle(self.table, now_s + self.times.return_s, self.version)
        if any(self.table.workers[slot].activity is not Activity.INACTIVE for slot in self.table.overlap):
            self.broken.append("an overlap worker was not returned")
        usable = self.table.usable(gpus)
        dedicated_s = self._reconfigure(usable, now_s)
        held = counts(self.table.rollout)
        whole = decide(self.workload.profile, self.workload.batch, len(usable) + OVERLAP, held, self.hysteresis)
        period_s, borrows = self.workload.period_s(dedicated_s, whole.makespan_s)
        alone_s = max(dedicated_s, self.workload.train_s)
        left = 1 - min(1.0, self.workload.train_s / dedicated_s)
        lent_s = self.workload.train_s + self.workload.toggle_s + left * whole.makespan_s if left else math.inf
        self.regret_s = max(self.regret_s, period_s - min(alone_s, lent_s))
        self.table = training_finished(self.table)
        if borrows:
            self.borrowed += 1
            self._reconfigure(usable | self.table.overlap, now_s)
        return period_s, self.workload.colocated_s(len(usable))

    def _reconfigure(self, usable: frozenset[int], now_s: float) -> float:
        """Decide, plan, apply; the predicted makespan. What an invariant forbids is written down."""
        before, current = self.table, self.table.rollout
        decision, step = reconfigure(before, usable, self.workload.profile, self.workload.batch, self.hysteresis)
        after = apply(before, step, now_s, self.times)
        moved = sum(current[slot] is not role for slot, role in step.roles.items() if slot in current)
        needed = len(usable ^ current.keys())  # all usable slots are to work, and no other
        stayed = [w for w in before.workers if w.slot in current.keys() & usable]
        if plan_cost(current, step) != (needed, moved):
            self.broken.append("a plan cost more than needed")
        if counts(after.rollout) != decision.topology:
            self.broken.append("a plan missed its target")
        if any(replace(after.workers[w.slot], role=w.role) != w for w in stayed):
            self.broken.append("a survivor lost its slot, GPUs or activity")
        if apply(after, step, now_s, self.times) != after:
            self.broken.append("a plan applied twice changed something")
        self.version += 1
        late_s = now_s + 1.0 + self.times.preparation_s + self.times.finalisation_s
        self.table = settle(load(after, after.rollout, self.version), late_s, self.version)
        if self.table.admitting != self.table.rollout:
            self.broken.append("a worker that joined was not admitted")
        again, nothing = reconfigure(self.table, usable, self.workload.profile, self.workload.batch, self.hysteresis)
        if again.topology != decision.topology or nothing.changes(self.table.rollout):
            self.broken.append("the same budget was decided otherwise")
        return decision.makespan_s
