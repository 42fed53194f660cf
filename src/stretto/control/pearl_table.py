"""PEARL's table of workers (arXiv 2609.35158): slot -> GPUs, role, activity; and what each event makes of it.

A training worker and *overlap* rollout workers share GPUs: while nothing trains, they may be lent. When training
begins they are returned, whatever they do; lending and growing are optional. Every function gives a new table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum

from stretto.control.pearl import Decision, Hysteresis, ReconfigurationLatencies, RolloutProfile, decide
from stretto.control.pearl_plan import Plan, WorkerRole, counts, plan
from stretto.kernel.errors import InvariantError


class Activity(StrEnum):
    """Whether a worker works, or is on its way."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    JOINING = "joining"
    """In transition; then active."""
    LEAVING = "leaving"
    """In transition; then inactive. It holds its GPUs, and takes no request."""


_COMMITTED = (Activity.ACTIVE, Activity.JOINING)


@dataclass(frozen=True)
class Worker:
    """One slot. ``ready_s``: when its transition ends. ``version``: of the weights that it holds, None before any."""

    slot: int
    gpus: frozenset[int]
    role: WorkerRole
    activity: Activity = Activity.INACTIVE
    ready_s: float = 0.0
    version: int | None = None


@dataclass(frozen=True)
class WorkerTable:
    """All slots, active or not, in their order.

    Raises:
        InvariantError: slots that are not 0, 1, ...; a GPU that serves two active workers, or will, or that is still
            held by one that leaves.
    """

    workers: tuple[Worker, ...]

    def __post_init__(self) -> None:
        if [worker.slot for worker in self.workers] != [*range(len(self.workers))]:
            raise InvariantError("slots of a worker table are 0, 1, ..., in order: they are never renumbered")
        holders: dict[int, list[Worker]] = {}
        for worker in self.workers:
            for gpu in worker.gpus if worker.activity is not Activity.INACTIVE else ():
                holders.setdefault(gpu, []).append(worker)
        for gpu, workers in holders.items():
            active = sum(worker.activity is Activity.ACTIVE for worker in workers)
            if len(workers) > 1 and (active or sum(worker.activity in _COMMITTED for worker in workers) > 1):
                slots = ", ".join(str(worker.slot) for worker in workers)
                raise InvariantError(f"GPU {gpu} serves workers {slots} at once")

    @property
    def rollout(self) -> dict[int, WorkerRole]:
        """Slot -> role of the rollout workers that are active or joining."""
        return {w.slot: w.role for w in self.workers if w.activity in _COMMITTED and w.role != WorkerRole.TRAINING}

    @property
    def admitting(self) -> dict[int, WorkerRole]:
        """Those of them that take requests."""
        return {slot: role for slot, role in self.rollout.items() if self.workers[slot].activity is Activity.ACTIVE}

    @property
    def overlap(self) -> frozenset[int]:
        """Slots of rollout workers on GPUs of a training worker."""
        lent = {gpu for w in self.workers if w.role == WorkerRole.TRAINING for gpu in w.gpus}
        return frozenset(w.slot for w in self.workers if w.role != WorkerRole.TRAINING and w.gpus & lent)

    def usable(self, gpus: AbstractSet[int]) -> frozenset[int]:
        """Rollout slots all of whose GPUs are among ``gpus``."""
        return frozenset(w.slot for w in self.workers if w.role != WorkerRole.TRAINING and w.gpus <= gpus)

    def updated(self, changed: Mapping[int, Worker]) -> WorkerTable:
        """The same with these workers in their slots."""
        return WorkerTable(tuple(changed.get(w.slot, w) for w in self.workers))


def reconfigure(
    table: WorkerTable,
    usable: AbstractSet[int],
    profile: RolloutProfile,
    batch: float,
    hysteresis: Hysteresis | None = None,
) -> tuple[Decision, Plan]:
    """What the budget of ``usable`` slots asks for: the topology of all of them, and the plan towards it."""
    current = table.rollout
    held = counts({slot: role for slot, role in current.items() if slot in usable})
    decision = decide(profile, batch, len(usable), held, hysteresis)
    return decision, plan(current, decision.topology, usable)


def apply(table: WorkerTable, plan: Plan, now_s: float, latencies: ReconfigurationLatencies) -> WorkerTable:
    """Begin ``plan``: survivors take their roles, ``remove`` is on its way out, ``add`` on its way in, to be admitted
    as one group. An overlap worker is prepared and needs its activation alone. Applied twice it changes nothing."""
    overlap = table.overlap
    waits_s = [latencies.activation_s if slot in overlap else latencies.preparation_s + latencies.finalisation_s
               for slot in plan.add]  # fmt: skip
    ready_s = now_s + max(waits_s, default=0.0)
    changed = {}
    for slot, role in plan.roles.items():
        worker = replace(table.workers[slot], role=role)
        if worker.activity not in _COMMITTED:
            worker = replace(worker, activity=Activity.JOINING, ready_s=ready_s, version=None)
        changed[slot] = worker
    for slot in plan.remove:
        changed[slot] = _leave(table.workers[slot], now_s + latencies.return_s)
    return table.updated(changed)


def training_begin(table: WorkerTable, now_s: float, latencies: ReconfigurationLatencies) -> WorkerTable:
    """Training workers get their GPUs, at once or when the overlap workers have returned them: at ``now_s + return_s``
    at the latest, whatever these were about."""
    leaving = {slot: _leave(table.workers[slot], now_s + latencies.return_s) for slot in table.overlap}
    left = table.updated(leaving)
    training = {}
    for worker in left.workers:
        if worker.role == WorkerRole.TRAINING and worker.activity not in _COMMITTED:
            until_s = [w.ready_s for w in left.workers if w.activity is Activity.LEAVING and w.gpus & worker.gpus]
            activity = Activity.JOINING if until_s else Activity.ACTIVE
            training[worker.slot] = replace(worker, activity=activity, ready_s=max(until_s, default=now_s))
    return left.updated(training)


def training_finished(table: WorkerTable) -> WorkerTable:
    """Training workers are idle; their GPUs may be lent."""
    training = [w for w in table.workers if w.role == WorkerRole.TRAINING]
    return table.updated({w.slot: replace(w, activity=Activity.INACTIVE) for w in training})


def load(table: WorkerTable, slots: Collection[int], version: int) -> WorkerTable:
    """These workers hold ``version`` now."""
    return table.updated({slot: replace(table.workers[slot], version=version) for slot in slots})


def settle(table: WorkerTable, now_s: float, latest: int) -> WorkerTable:
    """End the transitions that are over at ``now_s``. Rollout workers that join together are admitted together, and
    only once each holds the ``latest`` version: all or none."""
    late = {w.ready_s for w in table.workers if w.activity is Activity.JOINING and w.role != WorkerRole.TRAINING
            and (w.version is None or w.version < latest)}  # fmt: skip
    changed = {}
    for worker in table.workers:
        if worker.ready_s > now_s:
            continue
        if worker.activity is Activity.LEAVING:
            changed[worker.slot] = replace(worker, activity=Activity.INACTIVE, version=None)
        elif worker.activity is Activity.JOINING and (worker.role == WorkerRole.TRAINING or worker.ready_s not in late):
            changed[worker.slot] = replace(worker, activity=Activity.ACTIVE)
    return table.updated(changed)


def _leave(worker: Worker, ready_s: float) -> Worker:
    """On its way out if it holds its GPUs; one that leaves already goes on doing so."""
    if worker.activity not in _COMMITTED:
        return worker
    return replace(worker, activity=Activity.LEAVING, ready_s=ready_s)
