"""What the things of a run are called: which policy, which version of it, which random draws; and what its workers are.

Ids are counters: trajectories are numbered 0, 1, ... in the order in which they are submitted, in the whole run and
over its resumptions; those of an evaluation -1, -2, ..., as their tasks are. An id tells nothing but which one it is:
what belongs together is said where it begins (``Submitted``). What a trajectory draws doesn't hang on its id but on its
``noise_key``, which depends on its place (task, number in the group), so that a resumed run draws what it would have
drawn, and one that starts groups in another order, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stretto.kernel.errors import InvariantError

POLICY = "policy"
"""The policy of a run that has one."""
GROUPS = (1 << 40) // 1000
"""Groups of a run that have noise keys."""
MEMBERS = 1000 + (1 << 31)
"""Trajectories of a group that have, replaced ones included."""
EVALUATIONS = (1 << 62) - (1 << 40)
"""Trajectories of all evaluations of a run that have."""
_DENSE = 1000
"""Members of a group whose keys lie side by side; those of the few that follow are far away."""


class Role(StrEnum):
    """What a worker does; said when it comes up (``WorkerUp``) and when it changes (``RoleChanged``), never by its
    name. Whether it lives is another matter."""

    ENGINE = "engine"
    """It samples."""
    STANDBY = "standby"
    """An engine that gets no new work."""
    LEARNER = "learner"
    SCORING = "scoring"
    """It runs rewards and tools."""


ENGINES = frozenset({Role.ENGINE, Role.STANDBY})
"""Roles of workers that hold weights and sample, if only what they have begun."""


@dataclass(frozen=True, order=True, slots=True)
class PolicyVersion:
    """One version of one policy's weights. ``number`` 0 are the initial ones, the k-th published update makes k; those
    of one policy are ordered by it, policies by their name.

    Raises:
        InvariantError: ``policy`` is empty or ``number`` below 0.
    """

    policy: str = POLICY
    number: int = 0

    def __post_init__(self) -> None:
        if not self.policy or self.number < 0:
            raise InvariantError(f"version {self.number} of policy {self.policy!r}: a policy has a name, and its "
                                 "versions are 0, 1, 2, ...")  # fmt: skip

    def __str__(self) -> str:
        return f"version {self.number} of {self.policy}"


def noise_key(group: int, member: int) -> int:
    """What addresses the random draws of trajectory number ``member`` of a group: below 2^63, one's own.

    Raises:
        InvariantError: a group or a member beyond ``GROUPS`` or ``MEMBERS``, or below 0.
    """
    if not (0 <= group < GROUPS and 0 <= member < MEMBERS):
        raise InvariantError(f"trajectory {member} of group {group} has no noise key: a run has at most {GROUPS} "
                             f"groups, numbered from 0, of {MEMBERS} trajectories each. Start a new run")  # fmt: skip
    if member < _DENSE:
        return group * _DENSE + member
    return (1 << 62) + (group << 31) + member - _DENSE


def evaluation_noise_key(number: int) -> int:
    """The same of a run's evaluations, whose trajectories are counted through.

    Raises:
        InvariantError: a number beyond ``EVALUATIONS``, or below 0.
    """
    if not 0 <= number < EVALUATIONS:
        raise InvariantError(f"evaluated trajectory {number} has no noise key: a run evaluates at most {EVALUATIONS} "
                             "of them. Start a new run")  # fmt: skip
    return (1 << 40) + number
