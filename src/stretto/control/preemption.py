"""Preemption rules: which running trajectories pause, go on, or move?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from stretto.control.actions import Preempt, PreemptionAction
from stretto.control.engines import EngineView
from stretto.control.hooks import PREEMPTION
from stretto.control.view import View
from stretto.control.watch import Phase, TrajectoryView
from stretto.kernel.errors import ConfigError


@PREEMPTION.register("stay")
@dataclass(frozen=True)
class Stay:
    """Every trajectory runs to its end where it started."""

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        """Nothing moves."""
        return ()


@PREEMPTION.register("rebalance")
@dataclass(frozen=True)
class Rebalance:
    """Even out the engines [inferred]: while one has ``margin`` trajectories more than another, one that is with its
    engine goes over, with its cache; first the one that has sampled least, which costs least to move. Nobody goes to
    older weights, nor from the version to which it is pinned."""

    margin: int = 2
    watches_trajectories: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.margin < 2:
            raise ConfigError(f"control.preemption.margin = {self.margin}: with less than 2 trajectories would go to "
                              "and fro")  # fmt: skip

    def decide(self, view: View) -> Sequence[PreemptionAction]:
        """Moves from the fullest engine to the emptiest one."""
        if len(view.by_load) < 2 or view.by_load[-1][0] - view.by_load[0][0] < self.margin:
            return ()
        emptiest, fullest = (view.engines[view.by_load[end][3]] for end in (0, -1))
        movable = [one for one in view.trajectories.values() if _can_move(view, one, fullest, emptiest)]
        movable.sort(key=lambda one: (one.tokens, one.id))
        surplus = (fullest.trajectories - emptiest.trajectories - self.margin) // 2 + 1
        return [PreemptionAction(Preempt.MIGRATE, one.id, emptiest.name) for one in movable[:surplus]]


def _can_move(view: View, one: TrajectoryView, here: EngineView, there: EngineView) -> bool:
    group = view.group_of(one.id)
    if group is None or one.engine != here.name or one.rests or one.phase is Phase.ENVIRONMENT:
        return False
    assert here.version is not None
    assert there.version is not None
    return there.version == group.pin if group.pin is not None else there.version >= here.version
