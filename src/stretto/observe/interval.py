"""One row of metrics per learner step, computed from the events alone.

``Interval`` is a listener: call it with each event; ``StepEnd`` and ``Eval`` return a row. The interval of a row
is the time since the step before it. Metrics of the batch (``reward/trained``, ``staleness``, ``group``) come from
the batch that was shipped; ``reward/all``, ``length`` and the like from every trajectory that completed meanwhile.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from stretto.observe.tally import Done, Event, Row, Tally, percentile

ROWS = frozenset(("StepEnd", "Eval"))
"""The events that complete a row."""


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


class Interval:
    """Cumulative counts and what happened since the last row."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.start: Event = {}
        self._busy: dict[str, Spans] = {}
        self._env = Spans()
        self._since = 0.0
        self._step_started = 0.0
        self._done: list[Done] = []
        self._pause_s: list[float] = []
        self._before = (0, 0)
        own: dict[str, Callable[[Event], Row | None]] = {
            "RunStart": self._on_start,
            "Resumed": self._on_resumed,
            "EnvDone": self._on_env,
            "StepStart": self._on_step_start,
            "StepEnd": self._on_step_end,
            "Loaded": self._on_loaded,
            "Busy": self._on_busy,
            "Eval": self._on_eval,
        }
        self.handlers: dict[str, Callable[[Event], Row | None]] = {
            name: both(handler, own.get(name)) for name, handler in self.tally.handlers.items()
        }
        """What takes in the events of each name that matters; that of ``ROWS`` return a row."""
        self.handlers |= {name: handler for name, handler in own.items() if name not in self.handlers}
        self.handlers["TrajDone"] = self._on_done

    def __call__(self, event: Event) -> Row | None:
        """Take one event; returns the row that it completes."""
        handler = self.handlers.get(event["e"])
        return handler(event) if handler is not None else None

    def replay(self, events: Iterable[Event]) -> list[Row]:
        """All rows of these events."""
        return [row for event in events if (row := self(event)) is not None]

    def _on_start(self, event: Event) -> None:
        self.start = event
        self._since = event["t"]

    def _on_resumed(self, event: Event) -> None:
        self._since = event["t"]

    def _on_env(self, event: Event) -> None:
        self._env.add(event["start"], event["t"])

    def _on_done(self, event: Event) -> None:
        self._done.append(self.tally.trajectory_done(event))

    def _on_step_start(self, event: Event) -> None:
        self._step_started = event["t"]

    def _on_loaded(self, event: Event) -> None:
        self._pause_s.append(event["t"] - event["start"])

    def _on_busy(self, event: Event) -> None:
        worker = event["worker"]
        if worker not in self._busy:
            self._busy[worker] = Spans()
        self._busy[worker].add(event["start"], event["end"])

    def _on_eval(self, event: Event) -> Row:
        row: Row = {"step": self.tally.steps, "t": event["t"], "eval/accuracy": event["accuracy"],
                    "eval/mean": event["reward"], "eval/version": event["version"], "eval/count": event["n"],
                    "time/eval": event["t"] - event["start"]}  # fmt: skip
        if event.get("distance"):
            row["weights/distance_to_initial"] = min(event["distance"].values())
        return row

    def _on_step_end(self, event: Event) -> Row:
        t, tally = event["t"], self.tally
        window = max(t - self._since, 1e-9)
        row: Row = {"step": tally.steps, "version": event["version"], "t": t}
        row |= tally.batch
        row |= completed(self._done)
        for name, (count, tokens) in tally.ledger().items():
            row[f"ledger/{name}"], row[f"ledger/{name}_tokens"] = count, tokens
        submitted_tokens = row["ledger/submitted_tokens"]
        row["ledger/rejected_token_share"] = row["ledger/rejected_tokens"] / max(1, submitted_tokens)
        before, self._before = self._before, (submitted_tokens, row["ledger/trained_tokens"])
        row["tokens_per_s/generated"] = (submitted_tokens - before[0]) / window
        row["tokens_per_s/trained"] = (row["ledger/trained_tokens"] - before[1]) / window
        row |= self._times(window, t)
        row["pool/size"], row["in_flight"] = len(tally.ready), tally.in_flight
        row["version/learner"] = tally.published
        if tally.worker_version:
            row["version/engine_min"] = min(tally.worker_version.values())
            row["version/engine_max"] = max(tally.worker_version.values())
        row["restarts/engine"] = tally.restarts
        row["update/skipped"] = int(event["skipped"])
        row |= event["metrics"]
        self._since = t
        self._done = []
        return row

    def _times(self, window: float, t: float) -> Row:
        """Seconds by role and idle shares. A span that crosses the window's start counts inside it only."""
        row: Row = {"time/step": window}
        busy = [spans.take(self._since)[0] for worker, spans in self._busy.items() if worker != "learner"]
        engines = max(len(busy), int(self.start.get("engines") or 1))
        row["time/generate"] = sum(busy) / engines
        row["time/train"] = t - max(self._step_started, self._since)
        row["time/wait"] = window - row["time/train"]
        row["time/sync"] = sum(self._pause_s) / engines
        env, row["time/score"] = self._env.take(self._since)
        row["sync/pause_s"] = max(self._pause_s, default=0.0)
        row["idle_ratio/learner"] = row["time/wait"] / window
        row["idle_ratio/engine"] = max(0.0, 1 - row["time/generate"] / window)
        row["idle_ratio/env"] = max(0.0, 1 - env / window)
        self._pause_s.clear()
        return row


def both(
    first: Callable[[Event], object], second: Callable[[Event], Row | None] | None
) -> Callable[[Event], Row | None]:
    """One after the other; what the second one returns."""

    def call(event: Event) -> Row | None:
        first(event)
        return second(event) if second is not None else None

    return call


def completed(done: list[Done]) -> Row:
    """Metrics over trajectories that completed in the interval, whatever became of them."""
    row: Row = {"reward/all/count": 0, "completed": len(done)}
    if not done:
        return row
    rewards = [d.reward for d in done if d.reward is not None]
    row["reward/all/count"] = len(rewards)
    if rewards:
        row["reward/all/mean"] = sum(rewards) / len(rewards)
    row["reward/valid_fraction"] = len(rewards) / len(done)
    row |= _functions([d.rewards for d in done if d.rewards is not None])
    lengths = [d.tokens for d in done]
    row["length/mean"] = sum(lengths) / len(lengths)
    row["length/p95"] = percentile(Counter(lengths), 0.95)
    row["truncated"] = sum(d.truncated for d in done) / len(done)
    row["turns/mean"] = sum(d.turns for d in done) / len(done)
    return row


def _functions(several: list[dict[str, float | None]]) -> Row:
    """Of each of several reward functions: the mean of its values and the share of trajectories without one."""
    row: Row = {}
    for label in several[0] if several else ():
        values = [value for rewards in several if (value := rewards[label]) is not None]
        if values:
            row[f"reward/fn/{label}/mean"] = sum(values) / len(values)
        row[f"reward/fn/{label}/failed"] = 1 - len(values) / len(several)
    return row
