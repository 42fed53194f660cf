"""Each trajectory as the log tells it, for rules that look at single ones: where it is, how far, doing what.

Kept only where a rule asks (``watches_trajectories = True`` in its class): it takes every event of every turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from stretto.control.actions import Preempt
from stretto.kernel.logfile import Event


class Phase(StrEnum):
    """What a trajectory is at."""

    QUEUED = "queued"
    """Its turn has no token yet: it waits for a slot, or is prefilled."""
    SAMPLING = "sampling"
    ENVIRONMENT = "environment"
    """A tool, scoring, a sleep."""
    DONE = "done"
    """It has completed and waits to be trained, or is in training."""


@dataclass(slots=True)
class TrajectoryView:
    """A trajectory that has not ended. ``tokens``: policy tokens of its finished turns, since it was restarted;
    ``since``: when its phase began, seconds on the run's clock. ``engine``: '' between a resume and its restart.
    ``rests``: as ``Preempt.PAUSE`` or ``Preempt.EVICT``, until it is resumed; None: it runs."""

    id: int
    group: int
    engine: str
    since: float
    phase: Phase = Phase.QUEUED
    tokens: int = 0
    rests: Preempt | None = None


@dataclass(slots=True)
class EngineLoad:
    """What an engine has to do. By the events: trajectories of each phase, and ``tokens`` of finished turns that these
    hold. By its own word (its latest ``Busy``, at ``told``; None: it didn't say): requests that wait for a slot, tokens
    in its KV cache, and requests that it preempted since it came up."""

    queued: int = 0
    sampling: int = 0
    environment: int = 0
    tokens: int = 0
    waiting: int | None = None
    kv_tokens: int | None = None
    preempted: int | None = None
    told: float | None = None


class Watch:
    """Built from events; ``handlers`` take them in."""

    def __init__(self) -> None:
        self.trajectories: dict[int, TrajectoryView] = {}
        self.load: dict[str, EngineLoad] = {}
        self._training: list[int] = []
        self.handlers: dict[str, Callable[[Event], None]] = {
            "Submitted": self._submitted,
            "Placed": self._placed,
            "Preempted": self._preempted,
            "Resumed": self._resumed,
            "Restarted": self._restarted,
            "WorkerUp": self._worker_up,
            "FirstToken": self._first_token,
            "TurnDone": self._turn_done,
            "EnvStarted": self._env_started,
            "EnvDone": self._env_done,
            "TrajDone": self._done,
            "TrajEnd": self._ended,
            "StepStart": self._step_start,
            "StepEnd": self._step_end,
            "Busy": self._busy,
        }

    def _of(self, engine: str) -> EngineLoad:
        found = self.load.get(engine)
        if found is None:
            found = self.load[engine] = EngineLoad()
        return found

    def _count(self, one: TrajectoryView, n: int) -> None:
        """``n`` more like this on its engine."""
        if one.phase is Phase.DONE or not one.engine:
            return
        load = self._of(one.engine)
        if one.phase is Phase.QUEUED:
            load.queued += n
        elif one.phase is Phase.SAMPLING:
            load.sampling += n
        else:
            load.environment += n
        load.tokens += n * one.tokens

    def _move(self, id: int, t: float, phase: Phase, tokens: int | None = None) -> None:
        """It is at something else now; one that has ended, or is done, isn't."""
        one = self.trajectories.get(id)
        if one is None or one.phase is Phase.DONE:
            return
        self._count(one, -1)
        one.phase, one.since = phase, t
        if tokens is not None:
            one.tokens = tokens
        self._count(one, 1)

    def _submitted(self, event: Event) -> None:
        for id in event["traj"]:
            one = self.trajectories[id] = TrajectoryView(id, event["group"], event["engine"], event["t"])
            self._count(one, 1)

    def _placed(self, event: Event) -> None:
        one = self.trajectories.get(event["traj"])
        if one is not None:
            self._count(one, -1)
            one.engine = event["engine"]
            self._count(one, 1)

    def _preempted(self, event: Event) -> None:
        self._placed(event)
        one = self.trajectories.get(event["traj"])
        if one is not None:
            verb = Preempt(event["verb"])
            if verb in (Preempt.PAUSE, Preempt.EVICT):
                one.rests = verb
            elif verb is Preempt.RESUME:
                one.rests = None

    def _resumed(self, event: Event) -> None:
        self.load.clear()
        for one in self.trajectories.values():
            if one.phase is not Phase.DONE:
                one.engine = ""

    def _restarted(self, event: Event) -> None:
        for id in event["traj"]:
            one = self.trajectories[id] = TrajectoryView(id, event["group"], event["engine"], event["t"])
            self._count(one, 1)

    def _worker_up(self, event: Event) -> None:
        """What it said before it died says nothing of it now."""
        load = self.load.get(event["worker"])
        if load is not None:
            load.waiting = load.kv_tokens = load.preempted = load.told = None

    def _first_token(self, event: Event) -> None:
        for id in event["traj"]:
            self._move(id, event["t"], Phase.SAMPLING)

    def _turn_done(self, event: Event) -> None:
        one = self.trajectories.get(event["traj"])
        if one is not None:
            self._move(one.id, event["t"], Phase.QUEUED, one.tokens + event["tokens"])

    def _env_started(self, event: Event) -> None:
        self._move(event["traj"], event["t"], Phase.ENVIRONMENT)

    def _env_done(self, event: Event) -> None:
        self._move(event["traj"], event["t"], Phase.QUEUED)

    def _done(self, event: Event) -> None:
        self._move(event["traj"], event["t"], Phase.DONE, event["tokens"])

    def _ended(self, event: Event) -> None:
        for id in event["traj"]:
            one = self.trajectories.pop(id, None)
            if one is not None:
                self._count(one, -1)

    def _step_start(self, event: Event) -> None:
        self._training = event["traj"]

    def _step_end(self, event: Event) -> None:
        for id in () if event["skipped"] else self._training:
            self.trajectories.pop(id, None)
        self._training = []

    def _busy(self, event: Event) -> None:
        load = self._of(event["worker"])
        load.waiting, load.kv_tokens = event.get("waiting"), event.get("kv_tokens")
        load.preempted, load.told = event.get("preempted"), event["t"]
