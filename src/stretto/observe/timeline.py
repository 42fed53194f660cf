"""Who worked when: activity of engines, environments, learner and publishes, reduced to what a page can show.

Two passes over the events: ``Extent`` finds when the run began and ended and which times to show in detail;
``Timeline`` adds each span up in columns of time that are known by then. Neither grows with the run.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stretto.kernel.logfile import Event
from stretto.observe.bounded import Thinned
from stretto.observe.roles import Roles

BINS = 300
"""columns of an overview strip"""
MAX_ENGINES = 6
"""engine lanes shown one by one; further ones are only in the average"""
MAX_SPANS = 2500
"""spans of one detailed window"""
STEPS_PER_WINDOW = 5
_STARTS = 4096
"""of steps, that are remembered"""
_HELD = 4096
"""spans of a lane that wait to be added up together"""

Floats = NDArray[np.float64]


class Lane:
    """Spans [start, end] in seconds with a weight each."""

    def __init__(self) -> None:
        self.start, self.end, self.weight = array("d"), array("d"), array("d")

    def add(self, start: float, end: float, weight: float = 1.0) -> None:
        """One span."""
        self.start.append(start)
        self.end.append(end)
        self.weight.append(weight)

    def mean_active(self, edges: Floats) -> Floats:
        """Mean number of spans active in each bin between ``edges`` [n+1] -> [n]."""
        return seconds_active(np.asarray(self.start), np.asarray(self.end), edges) / _widths(edges)

    def inside(self, low: float, high: float) -> list[list[float]]:
        """[start, end, weight] of the spans that touch [low, high], clipped to it."""
        start, end = np.asarray(self.start), np.asarray(self.end)
        found = np.flatnonzero((end >= low) & (start <= high))
        return [
            [round(max(self.start[i], low), 4), round(min(self.end[i], high), 4), round(self.weight[i], 3)]
            for i in found
        ]


def seconds_active(starts: Floats, ends: Floats, edges: Floats) -> Floats:
    """Seconds of all spans together in each bin between ``edges`` [n+1] -> [n]."""
    seconds: Floats = np.diff(_elapsed(np.sort(starts), edges) - _elapsed(np.sort(ends), edges))
    return seconds


def _elapsed(sorted_times: Floats, at: Floats) -> Floats:
    """Sum over times s < x of (x - s), for each x in ``at``."""
    count = np.searchsorted(sorted_times, at)
    sums = np.concatenate([[0.0], np.cumsum(sorted_times)])
    return count * at - sums[count]


def _widths(edges: Floats) -> Floats:
    widths: Floats = np.maximum(np.diff(edges), 1e-12)
    return widths


class Activity:
    """Spans added up in bins between given ``edges`` [n+1]: how many are active, or (``union``) whether any is.

    Overlaps are told among spans that come within a few thousand of each other; a span that reaches back further
    counts on its own, which shows in its outermost bins at most.
    """

    def __init__(self, edges: Floats, union: bool = False) -> None:
        self._edges, self._union = edges, union
        self._seconds = np.zeros(len(edges) - 1)
        self._start, self._end = array("d"), array("d")
        self._most = _HELD

    def add(self, start: float, end: float) -> None:
        """One span."""
        self._start.append(start)
        self._end.append(end)
        if len(self._start) >= self._most:
            self._take(float(np.median(self._start)) if self._union else math.inf)
            self._most = max(_HELD, 2 * len(self._start))

    def _take(self, until: float) -> None:
        """Add up what is before ``until``; the rest goes on waiting."""
        start, end = np.array(self._start), np.array(self._end)
        late = end > until
        self._start = array("d", np.maximum(start[late], until))
        self._end = array("d", end[late])
        early = start < until
        start, end = start[early], np.minimum(end[early], until)
        if self._union and len(start):
            order = np.argsort(start)
            start, reach = start[order], np.maximum.accumulate(end[order])
            first = np.concatenate([[True], start[1:] > reach[:-1]])
            start, end = start[first], reach[np.concatenate([first[1:], [True]])]
        self._seconds += seconds_active(start, end, self._edges)

    def mean(self) -> Floats:
        """Mean number of spans active in each bin; of a union the share of time in which any was."""
        self._take(math.inf)
        mean: Floats = self._seconds / _widths(self._edges)
        return mean.clip(0, 1) if self._union else mean.clip(0)


class Extent:
    """Listener of the first pass: when the run began and ended, and when its steps started."""

    def __init__(self) -> None:
        self.begin: float | None = None
        self.end = 0.0
        self._steps: Thinned[float] = Thinned(_STARTS)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self.end = event["t"]
        if self.begin is None:
            self.begin = event["t"]
        if event["e"] == "StepStart":
            self._steps.add(event["t"])

    def windows(self) -> list[tuple[str, float, float]]:
        """(name, begin, end) of what to show in detail: some steps at the run's start, middle and end."""
        begin = self.begin or 0.0
        end = max(self.end, begin + 1e-9)
        steps = np.asarray([*self._steps])
        width = end - begin
        if len(steps) > 1:
            width = min(width, float(np.median(np.diff(steps))) / self._steps.stride * STEPS_PER_WINDOW)
        if width >= 0.6 * (end - begin):
            return [("whole run", begin, end)]
        middle = float(steps[len(steps) // 2])
        places = {"start": begin, "middle": min(max(begin, middle), end - width), "end": end - width}
        return [(name, low, low + width) for name, low in places.items()]


class _Window:
    """Single spans of a short time."""

    def __init__(self, name: str, low: float, high: float) -> None:
        self.name, self.low, self.high = name, low, high
        self.engines: dict[str, Lane] = {}
        self.loads: dict[str, Lane] = {}
        self.env, self.learner, self.publish, self.eval = Lane(), Lane(), Lane(), Lane()

    def touches(self, start: float, end: float) -> bool:
        return end >= self.low and start <= self.high

    def data(self, shown: Sequence[str]) -> dict[str, object]:
        """Its lanes; narrowed until it holds few enough spans."""
        low, high = self.low, self.high
        while True:
            engines = {n: self.engines.get(n, Lane()).inside(low, high) for n in shown}
            lanes = {k: getattr(self, k).inside(low, high) for k in ("learner", "publish", "eval")}
            loads = {n: self.loads[n].inside(low, high) for n in shown if n in self.loads}
            if sum(map(len, [*engines.values(), *loads.values(), *lanes.values()])) <= MAX_SPANS:
                break
            high = low + (high - low) / 2
        edges = np.linspace(low, high, BINS + 1)
        return {"name": self.name, "begin": low, "end": high, "engines": engines, "loads": loads, **lanes,
                "env": self.env.mean_active(edges).clip(0).round(2).tolist()}  # fmt: skip


class Timeline:
    """Listener of the second pass. ``times`` [n], rising: idle shares are wanted between them."""

    def __init__(self, extent: Extent, times: Sequence[float] = ()) -> None:
        self.begin = extent.begin or 0.0
        self.end = max(extent.end, self.begin + 1e-9)
        self._overview = np.linspace(self.begin, self.end, BINS + 1)
        self._idle = np.array([self.begin, *times])
        self._windows = [_Window(*window) for window in extent.windows()]
        self._engines: dict[str, tuple[Activity, Activity]] = {}
        self._learner, self._env = self._both(), self._both()
        self._step_started: float | None = None
        self._roles = Roles()

    def _both(self) -> tuple[Activity, Activity]:
        """Of the overview, and between ``times``."""
        return Activity(self._overview), Activity(self._idle, union=True)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        name, t = event["e"], event["t"]
        if name == "EnvDone":
            self._work(self._env, event["start"], t)
            for window in self._at(event["start"], t):
                window.env.add(event["start"], t)
        elif name in ("WorkerUp", "RoleChanged"):
            self._roles(event)
        elif name == "Busy" and self._roles.samples(event["worker"]):
            self._busy(event["worker"], event["start"], event["end"], event["rows"])
        elif name == "StepStart":
            self._step_started = t
        elif name == "StepEnd" and self._step_started is not None:
            self._work(self._learner, self._step_started, t)
            for window in self._at(self._step_started, t):
                window.learner.add(self._step_started, t, event["step"])
            self._step_started = None
        elif name == "Published":
            for window in self._at(t, t):
                window.publish.add(t, t, event["version"])
        elif name == "Loaded":
            for window in self._at(event["start"], t):
                window.loads.setdefault(event["worker"], Lane()).add(event["start"], t, event["version"])
        elif name == "Eval":
            for window in self._at(event["start"], t):
                window.eval.add(event["start"], t, event["version"])
        elif name == "Resumed":
            self._step_started = None

    def _busy(self, worker: str, start: float, end: float, rows: float) -> None:
        if worker not in self._engines:
            self._engines[worker] = self._both()
        self._work(self._engines[worker], start, end)
        for window in self._at(start, end):
            window.engines.setdefault(worker, Lane()).add(start, end, rows)

    def _work(self, both: tuple[Activity, Activity], start: float, end: float) -> None:
        for activity in both:
            activity.add(start, end)

    def _at(self, start: float, end: float) -> list[_Window]:
        return [window for window in self._windows if window.touches(start, end)]

    def idle(self) -> dict[str, list[float]]:
        """Share of time without work of each role, between the run's begin and the first of ``times``, and so on."""
        engines = [between.mean() for _, between in self._engines.values()]
        busy = {
            "learner": self._learner[1].mean(),
            "engine": np.mean(engines, axis=0) if engines else np.zeros(len(self._idle) - 1),
            "env": self._env[1].mean(),
        }
        return {role: (1 - share).clip(0, 1).round(4).tolist() for role, share in busy.items()}

    def data(self) -> dict[str, object]:
        """``overview``: busy shares per bin of the whole run; ``windows``: spans of some steps at the run's start,
        middle and end; ``shown``: how many engines have a lane, in words, if not all."""
        shown = list(self._engines)[:MAX_ENGINES]
        shares = {name: whole.mean().clip(0, 1) for name, (whole, _) in self._engines.items()}
        engines = {name: shares[name].round(3).tolist() for name in shown}
        if len(shares) > 1:
            engines = {f"mean of {len(shares)}": np.mean([*shares.values()], axis=0).round(3).tolist(), **engines}
        overview = {
            "engines": engines,
            "learner": self._learner[0].mean().clip(0, 1).round(3).tolist(),
            "env": self._env[0].mean().round(2).tolist(),
        }
        windows = [window.data(shown) for window in self._windows]
        few = f"{len(shown)} of {len(shares)} engines" if len(shown) < len(shares) else ""
        return {"begin": self.begin, "end": self.end, "overview": overview, "windows": windows, "shown": few}
