"""What waits in the pool as the log tells it, for rules that weigh what is ready: how stale it is, how far it drifted.

Kept only where a rule asks (``watches_pool = True`` in its class).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stretto.kernel.logfile import Event
from stretto.kernel.trajectory_events import Ending


@dataclass(slots=True)
class WaitingTrajectory:
    """A member of a ready group. ``tokens``: of the policy; ``sampled``: the sum of their versions; ``prefix``: how
    many of them are older than the last one. ``forgetting``: how far the policy of version ``scored_at`` had moved away
    from that prefix, mean per token (0 where there is none, or before anybody looked)."""

    id: int
    tokens: int
    sampled: int
    prefix: int
    forgetting: float = 0.0
    scored_at: int | None = None

    def generation(self, complete: int) -> int:
        """Generation staleness, summed over its tokens: complete - version of each."""
        return self.tokens * complete - self.sampled

    def total(self, version: int) -> int:
        """Total staleness at a step that starts at ``version``, summed over its tokens."""
        return self.tokens * version - self.sampled


@dataclass(slots=True)
class WaitingGroup:
    """A ready group. ``complete``: published version when its slowest member landed; ``arrival``: groups that had
    become ready before it."""

    id: int
    complete: int
    arrival: int
    members: list[WaitingTrajectory]


class PoolWatch:
    """Built from events; ``handlers`` take them in.

    ``groups``: ready ones by id, in order of completion. ``occupancies``: how many were ready before each batch was
    taken, and before anything was rejected for its sake; ``decided``: that number for the coming batch, if something
    was rejected already. ``scored``: have prefixes been scored since the last batch?
    """

    def __init__(self) -> None:
        self.groups: dict[int, WaitingGroup] = {}
        self.occupancies: list[int] = []
        self.decided: int | None = None
        self.scored = False
        self._arrivals = 0
        self._done: dict[int, WaitingTrajectory] = {}
        self.handlers: dict[str, Callable[[Event], None]] = {
            "TrajDone": self._traj_done,
            "TrajEnd": self._traj_end,
            "GroupReady": self._group_ready,
            "PrefixScored": self._prefix_scored,
            "StepStart": self._step_start,
        }

    def _traj_done(self, event: Event) -> None:
        runs, tokens = event["versions"], event["tokens"]
        prefix = sum(n for version, n in runs if version < runs[-1][0]) if runs else 0
        sampled = sum(version * n for version, n in runs)
        self._done[event["traj"]] = WaitingTrajectory(event["traj"], tokens, sampled, prefix)

    def _traj_end(self, event: Event) -> None:
        for id in event["traj"]:
            self._done.pop(id, None)
        if event.get("group_over") and event["group"] in self.groups:
            if event["ending"] == Ending.REJECTED and self.decided is None:
                self.decided = len(self.groups)
            del self.groups[event["group"]]

    def _group_ready(self, event: Event) -> None:
        members = [self._done[id] for id in event["traj"]]
        self.groups[event["group"]] = WaitingGroup(event["group"], event["version"], self._arrivals, members)
        self._arrivals += 1

    def _prefix_scored(self, event: Event) -> None:
        self.scored = True
        for id, forgetting in zip(event["traj"], event["forgetting"], strict=True):
            one = self._done.get(id)
            if one is not None:
                one.forgetting, one.scored_at = forgetting, event["version"]

    def _step_start(self, event: Event) -> None:
        self.occupancies.append(len(self.groups) if self.decided is None else self.decided)
        self.decided, self.scored = None, False
        for group in event["groups"]:
            del self.groups[group]
        for id in event["traj"]:
            self._done.pop(id, None)
