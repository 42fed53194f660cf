"""Admission rules: may one more group start?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.control.demand import room, room_in_order
from stretto.control.guarantees import Guarantee
from stretto.control.hooks import ADMISSION
from stretto.control.view import View


@ADMISSION.register("slots")
@dataclass(frozen=True)
class Slots:
    """Keep every slot of the engines busy: a group starts whenever a slot is free, its other members wait for the next
    ones. Knows no lag bound: only for soft baselines, with a pool rule that drops."""

    def decide(self, view: View, version: int) -> int:
        """Groups that fill the free slots."""
        return max(0, -((view.running_trajectories - view.slots) // view.group_size))


@ADMISSION.register("demand")
@dataclass(frozen=True)
class DemandAdmission:
    """Start a group only if it and everything outstanding can still train within the lag bound; and keep at most
    (depth + 1) batches outstanding, the batch in training included. Nothing ever has to be dropped."""

    guarantees: ClassVar = frozenset({Guarantee.LAG_BOUND, Guarantee.DEPTH})

    def decide(self, view: View, version: int) -> int:
        """Groups that may start at ``version``."""
        return max(0, min(room(view, version), _by_depth(view)))


@ADMISSION.register("submission")
@dataclass(frozen=True)
class SubmissionAdmission:
    """As ``demand``, for batches in order of submission (``order = "submission"`` sets both): a group that an engine
    with older weights starts trains after the outstanding ones all the same, so it must have the time for that."""

    guarantees: ClassVar = frozenset({Guarantee.LAG_BOUND, Guarantee.DEPTH})

    def decide(self, view: View, version: int) -> int:
        """Groups that may start at ``version``."""
        return max(0, min(room_in_order(view, version), _by_depth(view)))


def _by_depth(view: View) -> int:
    """Groups that may start until (depth + 1) batches are outstanding, the batch in training included."""
    outstanding = len(view.running) + len(view.ready) + len(view.training)
    return int((view.depth + 1) * view.batch) - outstanding
