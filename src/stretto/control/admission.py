"""Admission rules: may one more group start?"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.control.demand import room
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

    def decide(self, view: View, version: int) -> int:
        """Groups that may start at ``version``."""
        outstanding = len(view.running) + len(view.ready) + len(view.training)
        by_depth = int((view.depth + 1) * view.batch) - outstanding
        return max(0, min(room(view, version), by_depth))
