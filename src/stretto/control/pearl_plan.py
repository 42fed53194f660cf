"""PEARL's reconfiguration (arXiv 2609.35158, eq. 4-6): who comes, who goes, who changes role, and as few as possible.

Workers are *slots*: a slot is bound to its GPUs for ever and never renumbered, so what stays, stays where it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from stretto.control.pearl import Topology
from stretto.kernel.errors import InvariantError


class WorkerRole(StrEnum):
    """What a worker's GPUs do while it is active."""

    COLOCATED = "colocated"
    PREFILL = "prefill"
    DECODE = "decode"
    TRAINING = "training"


_PREFILLS = (WorkerRole.COLOCATED, WorkerRole.PREFILL)


@dataclass(frozen=True)
class Plan:
    """``add`` and ``remove``: slots that become active or stop, ascending. ``roles``: of every rollout worker that is
    active afterwards."""

    add: tuple[int, ...]
    remove: tuple[int, ...]
    roles: Mapping[int, WorkerRole]

    def changes(self, current: Mapping[int, WorkerRole]) -> bool:
        """Does it change anything where rollout workers have the roles ``current``?"""
        return dict(current) != dict(self.roles)


def counts(roles: Mapping[int, WorkerRole]) -> Topology:
    """How many rollout workers have each role."""
    found = Counter(roles.values())
    return Topology(*(found[role] for role in (WorkerRole.COLOCATED, WorkerRole.PREFILL, WorkerRole.DECODE)))


def plan(current: Mapping[int, WorkerRole], target: Topology, usable: AbstractSet[int]) -> Plan:
    """The way from ``current`` (slot -> role of the active rollout workers) to ``target`` on ``usable`` slots, at the
    least D_worker + D_role.

    Every survivor keeps its role up to the target's count. Survivors beyond it, and slots that are added, fill what is
    missing. If there are too many survivors, those beyond their role's count go, the highest slots first [inferred].
    ``InvariantError`` if ``usable`` are fewer than the target has.
    """
    if len(usable) < target.workers:
        raise InvariantError(f"{target} needs {target.workers} workers, {len(usable)} slots are usable")
    missing = {WorkerRole.COLOCATED: target.colocated, WorkerRole.PREFILL: target.prefill,
               WorkerRole.DECODE: target.decode}  # fmt: skip
    survivors = sorted(usable & current.keys())
    roles: dict[int, WorkerRole] = {}
    beyond = []
    for slot in survivors:
        role = current[slot]
        if missing[role] > 0:
            missing[role] -= 1
            roles[slot] = role
        else:
            beyond.append(slot)
    released = beyond[len(beyond) - max(0, len(survivors) - target.workers) :]
    add = sorted(usable - current.keys())[: max(0, target.workers - len(survivors))]
    unfilled = [role for role, n in missing.items() for _ in range(n)]
    roles.update(zip([*beyond[: len(beyond) - len(released)], *add], unfilled, strict=True))
    remove = sorted({*(current.keys() - usable), *released})
    return Plan(tuple(add), tuple(remove), dict(sorted(roles.items())))


def plan_cost(current: Mapping[int, WorkerRole], plan: Plan) -> tuple[int, int]:
    """D_worker = |W' - W| + |W - W'| and D_role = sum over roles of n_src - min(n_src, n_dst), n_src counted over the
    survivors, n_dst over W' (eq. 4-6)."""
    survivors = current.keys() & plan.roles.keys()
    source = Counter(current[slot] for slot in survivors)
    target = Counter(plan.roles.values())
    workers = len(plan.roles.keys() - current.keys()) + len(current.keys() - plan.roles.keys())
    return workers, sum(n - min(n, target[role]) for role, n in source.items())


def redispatch(placed: Mapping[int, int], current: Mapping[int, WorkerRole], plan: Plan) -> dict[int, int]:
    """Trajectory -> slot, after ``plan``, of the unfinished trajectories ``placed`` (trajectory -> slot).

    Those whose worker keeps its role stay. Each other goes on, with the tokens and the environment that it has, at the
    least loaded survivor that prefills; at an added worker, whose admission it awaits, only where no survivor does.
    ``InvariantError`` where trajectories have nowhere to go.
    """
    stay = {t: slot for t, slot in placed.items() if plan.roles.get(slot) is current[slot]}
    load = Counter(stay.values())
    ready = [slot for slot, role in plan.roles.items() if role in _PREFILLS]
    ready = [slot for slot in ready if slot in current] or ready
    after = dict(stay)
    for trajectory in sorted(placed.keys() - stay.keys()):
        if not ready:
            raise InvariantError(f"trajectory {trajectory} has nowhere to go on: no worker that prefills is left")
        to = min(ready, key=lambda slot: (load[slot], slot))
        load[to] += 1
        after[trajectory] = to
    return after
