"""Who worked when: activity of engines, environments, learner and publishes, reduced to what a page can show."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.observe.tally import Event

BINS = 300
"""columns of an overview strip"""
MAX_ENGINES = 6
"""engine lanes shown one by one; further ones are only in the average"""
MAX_SPANS = 2500
"""spans of one detailed window"""
STEPS_PER_WINDOW = 5

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
        starts, ends = np.sort(np.asarray(self.start)), np.sort(np.asarray(self.end))
        return np.diff(_elapsed(starts, edges) - _elapsed(ends, edges)) / np.maximum(np.diff(edges), 1e-12)

    def union(self) -> Lane:
        """Spans in which at least one of these is active."""
        merged = Lane()
        if not self.start:
            return merged
        start, end = np.asarray(self.start), np.asarray(self.end)
        order = np.argsort(start)
        start, reach = start[order], np.maximum.accumulate(end[order])
        first = np.concatenate([[True], start[1:] > reach[:-1]])
        last = np.concatenate([first[1:], [True]])
        for a, b in zip(start[first].tolist(), reach[last].tolist(), strict=True):
            merged.add(a, b)
        return merged

    def inside(self, low: float, high: float) -> list[list[float]]:
        """[start, end, weight] of the spans that touch [low, high], clipped to it."""
        start, end = np.asarray(self.start), np.asarray(self.end)
        found = np.flatnonzero((end >= low) & (start <= high))
        return [
            [round(max(self.start[i], low), 4), round(min(self.end[i], high), 4), round(self.weight[i], 3)]
            for i in found
        ]


def _elapsed(sorted_times: Floats, at: Floats) -> Floats:
    """Sum over times s < x of (x - s), for each x in ``at``."""
    count = np.searchsorted(sorted_times, at)
    sums = np.concatenate([[0.0], np.cumsum(sorted_times)])
    return count * at - sums[count]


class Timeline:
    """Listener that collects activity."""

    def __init__(self) -> None:
        self.engines: dict[str, Lane] = {}
        self.loads: dict[str, Lane] = {}
        self.learner, self.env, self.publish, self.eval = Lane(), Lane(), Lane(), Lane()
        self.end = 0.0
        self.begin: float | None = None
        self._step_started: float | None = None

    def __call__(self, event: Event) -> None:
        """Take one event."""
        name, t = event["e"], event["t"]
        self.end = t
        if self.begin is None:
            self.begin = t
        if name == "EnvDone":
            self.env.add(event["start"], t)
        elif name == "Busy":
            if event["worker"] != "learner":
                self.engines.setdefault(event["worker"], Lane()).add(event["start"], event["end"], event["rows"])
        elif name == "StepStart":
            self._step_started = t
        elif name == "StepEnd" and self._step_started is not None:
            self.learner.add(self._step_started, t, event["step"])
            self._step_started = None
        elif name == "Published":
            self.publish.add(t, t, event["version"])
        elif name == "Loaded":
            self.loads.setdefault(event["worker"], Lane()).add(event["start"], t, event["version"])
        elif name == "Eval":
            self.eval.add(event["start"], t, event["version"])
        elif name == "Resumed":
            self._step_started = None

    def idle(self, times: list[float]) -> dict[str, list[float]]:
        """Share of time without work of each role, between the run's begin and the first of ``times``, and so on."""
        edges = np.array([self.begin or 0.0, *times])
        engines = [lane.union().mean_active(edges) for lane in self.engines.values()]
        busy = {
            "learner": self.learner.mean_active(edges),
            "engine": np.mean(engines, axis=0) if engines else np.zeros(len(times)),
            "env": self.env.union().mean_active(edges),
        }
        return {role: (1 - share).clip(0, 1).round(4).tolist() for role, share in busy.items()}

    def data(self) -> dict[str, Any]:
        """``overview``: busy shares per bin of the whole run; ``windows``: spans of some steps at the run's start,
        middle and end."""
        begin = self.begin or 0.0
        end = max(self.end, begin + 1e-9)
        return {"begin": begin, "end": end, "overview": self._strips(begin, end), "windows": self._windows(begin, end)}

    def _strips(self, low: float, high: float, bins: int = BINS) -> dict[str, Any]:
        edges = np.linspace(low, high, bins + 1)
        engines = {name: _share(lane, edges) for name, lane in list(self.engines.items())[:MAX_ENGINES]}
        if len(self.engines) > 1:
            shares = [_share(lane, edges) for lane in self.engines.values()]
            engines = {f"mean of {len(self.engines)}": np.mean(shares, axis=0).round(3).tolist(), **engines}
        return {
            "engines": engines,
            "learner": _share(self.learner, edges),
            "env": self.env.mean_active(edges).clip(0).round(2).tolist(),
        }

    def _windows(self, begin: float, end: float) -> list[dict[str, Any]]:
        steps = np.asarray(self.learner.start)
        if len(steps) > 1:
            width = min(end - begin, float(np.median(np.diff(steps))) * STEPS_PER_WINDOW)
        else:
            width = end - begin
        if width >= 0.6 * (end - begin):
            return [self._window("whole run", begin, end)]
        middle = float(steps[len(steps) // 2])
        places = {"start": begin, "middle": min(max(begin, middle), end - width), "end": end - width}
        return [self._window(name, low, low + width) for name, low in places.items()]

    def _window(self, name: str, low: float, high: float) -> dict[str, Any]:
        """Lanes of [low, high]; narrowed until it holds few enough spans."""
        while True:
            engines = {n: lane.inside(low, high) for n, lane in list(self.engines.items())[:MAX_ENGINES]}
            lanes = {k: getattr(self, k).inside(low, high) for k in ("learner", "publish", "eval")}
            loads = {n: self.loads[n].inside(low, high) for n in engines if n in self.loads}
            if sum(map(len, [*engines.values(), *loads.values(), *lanes.values()])) <= MAX_SPANS:
                break
            high = low + (high - low) / 2
        edges = np.linspace(low, high, BINS + 1)
        return {"name": name, "begin": low, "end": high, "engines": engines, "loads": loads, **lanes,
                "env": self.env.mean_active(edges).clip(0).round(2).tolist()}  # fmt: skip


def _share(lane: Lane, edges: Floats) -> list[float]:
    values: list[float] = lane.mean_active(edges).clip(0, 1).round(3).tolist()
    return values
