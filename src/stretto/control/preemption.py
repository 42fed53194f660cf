"""Preemption rules: which running trajectories pause, go on, or move?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.control.hooks import PREEMPTION, PreemptionAction
from stretto.control.view import View


@PREEMPTION.register("stay")
@dataclass(frozen=True)
class Stay:
    """Every trajectory runs to its end where it started."""

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        """Nothing moves."""
        return ()
