"""Where the time between two steps went: seconds by role and idle shares."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np

from stretto.kernel.logfile import Event
from stretto.kernel.metrics import Metric, Section, declare
from stretto.observe.roles import Roles
from stretto.observe.tally import Row

OWN = declare(
    __name__,
    Metric(Section.TIME, "time/step", "s", "the interval: `time/train` + `time/wait`", "level"),
    Metric(Section.TIME, "time/{train,wait}", "s", "the learner at work; the learner waiting for a batch",
           "waits little", "engines are the bottleneck: a smaller model, more engines, higher L"),
    Metric(Section.TIME, "time/generate", "s", "an engine's work, the mean of all", "near `time/step`"),
    Metric(Section.TIME, "time/score", "s", "environment and reward calls, added up over all that run at once",
           otherwise="cheaper reward; `workers`"),
    Metric(Section.TIME, "time/sync", "s", "loading weights, per engine", "below 5 % of a step", "publish less often"),
    Metric(Section.TIME, "sync/pause_s", "s", "the longest load of an engine", "below 5 % of a step"),
    Metric(Section.TIME, "idle_ratio/{learner,engine,env}", "share", "of the interval without work",
           "the scarcer of learner and engine below 0.1", "both high: weight updates, or L is small"),
)  # fmt: skip


class Spans:
    """Busy time of something that many can do at once: union of [start, end] spans inside a window."""

    def __init__(self) -> None:
        self.starts, self.ends = array("d"), array("d")
        """In seconds of the run's clock."""

    def add(self, start: float, end: float) -> None:
        """One span."""
        self.starts.append(start)
        self.ends.append(end)

    def take(self, since: float) -> tuple[float, float]:
        """(seconds in which at least one span was active, sum of all spans); both after ``since``. Forgets them."""
        if not self.starts:
            return 0.0, 0.0
        start, end = np.array(self.starts), np.array(self.ends)
        self.starts, self.ends = array("d"), array("d")
        order = start.argsort(kind="stable")
        start, end = np.maximum(start[order], since), end[order]
        reach = np.maximum.accumulate(np.concatenate([[since], end[:-1]]))  # how far those before it came
        total = np.maximum(end - start, 0.0).sum()
        return float(np.maximum(end - np.maximum(start, reach), 0.0).sum()), float(total)


class Times:
    """What each role did since the step before; seconds of the run's clock."""

    def __init__(self) -> None:
        self.since = 0.0
        """When the step before ended; the start of the run, or of the resumed one, before the first."""
        self._engines = 1
        self._roles = Roles()
        self._busy: dict[str, Spans] = {}
        self._env = Spans()
        self._step_started = 0.0
        self._pause_s: list[float] = []
        self.handlers: dict[str, Callable[[Event], None]] = {
            "RunStart": self._on_start,
            "Resumed": self._on_resumed,
            "WorkerUp": self._roles,
            "RoleChanged": self._roles,
            "EnvDone": self._on_env,
            "StepStart": self._on_step_start,
            "Loaded": self._on_loaded,
            "Busy": self._on_busy,
        }
        """What takes in the events of each name that matters."""

    def _on_start(self, event: Event) -> None:
        self._engines = int(event.get("engines") or 1)
        self.since = event["t"]

    def _on_resumed(self, event: Event) -> None:
        self.since = event["t"]

    def _on_env(self, event: Event) -> None:
        self._env.add(event["start"], event["t"])

    def _on_step_start(self, event: Event) -> None:
        self._step_started = event["t"]

    def _on_loaded(self, event: Event) -> None:
        self._pause_s.append(event["t"] - event["start"])

    def _on_busy(self, event: Event) -> None:
        worker = event["worker"]
        if self._roles.samples(worker):
            if worker not in self._busy:
                self._busy[worker] = Spans()
            self._busy[worker].add(event["start"], event["end"])

    def window(self, t: float) -> float:
        """Seconds from the step before to ``t``, above 0."""
        return max(t - self.since, 1e-9)

    def step(self, t: float) -> Row:
        """The metrics of the step that ends at ``t``; the next interval begins. A span that crosses the window's start
        counts inside it only."""
        window = self.window(t)
        busy = [spans.take(self.since)[0] for spans in self._busy.values()]
        engines = max(len(busy), self._engines)
        generate = sum(busy) / engines
        train = t - max(self._step_started, self.since)
        env, score = self._env.take(self.since)
        row: Row = {
            "time/step": window,
            "time/generate": generate,
            "time/train": train,
            "time/wait": window - train,
            "time/sync": sum(self._pause_s) / engines,
            "time/score": score,
            "sync/pause_s": max(self._pause_s, default=0.0),
            "idle_ratio/learner": (window - train) / window,
            "idle_ratio/engine": max(0.0, 1 - generate / window),
            "idle_ratio/env": max(0.0, 1 - env / window),
        }
        self._pause_s.clear()
        self.since = t
        return OWN.checked(row)
