"""One row of metrics per learner step, computed from the events alone.

``Interval`` is a listener: call it with each event; ``StepEnd`` and ``Eval`` return a row. The interval of a row
is the time since the step before it. Metrics of the batch (``reward/trained``, ``staleness``, ``group``) come from
the batch that was shipped; ``reward/all``, ``length`` and the like from every trajectory that completed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from stretto.kernel.logfile import Event
from stretto.kernel.metrics import Metric, Section, declare, joined
from stretto.observe.completed import completed
from stretto.observe.tally import Done, Row, Tally
from stretto.observe.times import Times

ROWS = frozenset(("StepEnd", "Eval"))
"""The events that complete a row."""

OWN = declare(
    __name__,
    Metric(Section.ROW, "step", "steps", "steps that have trained", "rises"),
    Metric(Section.ROW, "t", "s", "the run's clock; virtual in a rehearsal", "rises"),
    Metric(Section.ROW, "version", "versions", "the policy after this step", "step + the first version"),
    Metric(Section.REWARD, "eval/accuracy", "share", "held-out tasks whose reward reaches `eval.success_threshold`",
           "rises with the training reward", "it falls while that rises: the reward is gamed"),
    Metric(Section.REWARD, "eval/mean", "reward", "mean reward of the held-out tasks; one that failed counts 0",
           "rises"),
    Metric(Section.REWARD, "eval/{version,count}", "version, tasks", "what was evaluated, on how many tasks",
           otherwise="accuracy is known to ± sqrt(p(1 - p)/n)"),
    Metric(Section.REWARD, "weights/distance_to_initial", "",
           "distance of the engines' weights from those of the start, relative; the least of all engines",
           "above 0 after the first update", "0: updates don't arrive"),
    Metric(Section.STALENESS, "pool/size", "groups", "complete, waiting to train", "no trend",
           "grows: the learner is the bottleneck"),
    Metric(Section.STALENESS, "in_flight", "trajectories", "being generated or scored", "level"),
    Metric(Section.LEARNER, "update/skipped", "0 or 1", "the gradient was not finite, and the step was skipped", "0",
           "lower `learner.lr`; look for NaN rewards"),
    Metric(Section.WORK, "ledger/{submitted,trained,rejected,filtered,failed,cancelled,open}", "trajectories",
           "since the start: where each one is or how it ended", "**exact**: submitted is the sum of the rest",
           "work was lost: a fault"),
    Metric(Section.WORK, "ledger/{submitted,trained,rejected,filtered,failed,cancelled,open}_tokens", "tokens",
           "the same in policy tokens", "**exact**"),
    Metric(Section.WORK, "ledger/rejected_token_share", "share", "rejected of all generated tokens", "at most 0.05",
           "raise L, lower `control.depth`"),
    Metric(Section.WORK, "tokens_per_s/{generated,trained}", "tokens/s", "over the interval",
           "trained at least 0.9 of generated", "see the ledger"),
    Metric(Section.TIME, "time/eval", "s", "an evaluation", otherwise="fewer `eval.tasks`, larger `eval.every`"),
    Metric(Section.TIME, "version/learner", "version", "that the learner has made"),
    Metric(Section.TIME, "version/published", "version", "the newest that engines may load", "at most 1 behind learner",
           "publishing is slow: `sync/pause_s`"),
    Metric(Section.TIME, "version/{engine_min,engine_max}", "version", "held by engines", "at most published",
           "one that lags: `restarts/engine`"),
    Metric(Section.TIME, "restarts/engine", "engines", "that went down since the start", "0", "`logs/` of that engine"),
)  # fmt: skip


class Interval:
    """Cumulative counts and what happened since the last row."""

    def __init__(self) -> None:
        self.tally, self.times = Tally(), Times()
        self.start: Event = {}
        self._done: list[Done] = []
        self._before = (0, 0)
        own: dict[str, Callable[[Event], Row | None]] = {
            **self.times.handlers,
            "RunStart": both(self._on_start, self.times.handlers["RunStart"]),
            "StepEnd": self._on_step_end,
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

    def _on_done(self, event: Event) -> None:
        self._done.append(self.tally.trajectory_done(event))

    def _on_eval(self, event: Event) -> Row:
        row: Row = {"step": self.tally.steps, "t": event["t"], "eval/accuracy": event["accuracy"],
                    "eval/mean": event["reward"], "eval/version": event["version"], "eval/count": event["n"],
                    "time/eval": event["t"] - event["start"]}  # fmt: skip
        if event.get("distance"):
            row["weights/distance_to_initial"] = min(event["distance"].values())
        return OWN.checked(row)

    def _on_step_end(self, event: Event) -> Row:
        own = self._own(event, self.times.window(event["t"]))
        row = joined(own, self.tally.batch, completed(self._done), self.times.step(event["t"]), event["metrics"])
        self._done = []
        return row

    def _own(self, event: Event, window: float) -> Row:
        """What is of no one else, for a step that ends after ``window`` seconds."""
        tally = self.tally
        row: Row = {"step": tally.steps, "version": event["version"], "t": event["t"]}
        for name, (count, tokens) in tally.ledger().items():
            row[f"ledger/{name}"], row[f"ledger/{name}_tokens"] = count, tokens
        submitted_tokens = row["ledger/submitted_tokens"]
        row["ledger/rejected_token_share"] = row["ledger/rejected_tokens"] / max(1, submitted_tokens)
        before, self._before = self._before, (submitted_tokens, row["ledger/trained_tokens"])
        row["tokens_per_s/generated"] = (submitted_tokens - before[0]) / window
        row["tokens_per_s/trained"] = (row["ledger/trained_tokens"] - before[1]) / window
        row["pool/size"], row["in_flight"] = len(tally.ready), tally.in_flight
        row["version/learner"], row["version/published"] = event["version"], tally.published
        if tally.worker_version:
            row["version/engine_min"] = min(tally.worker_version.values())
            row["version/engine_max"] = max(tally.worker_version.values())
        row["restarts/engine"] = tally.restarts
        row["update/skipped"] = int(event["skipped"])
        return OWN.checked(row)


def both(
    first: Callable[[Event], object], second: Callable[[Event], Row | None] | None
) -> Callable[[Event], Row | None]:
    """One after the other; what the second one returns."""

    def call(event: Event) -> Row | None:
        first(event)
        return second(event) if second is not None else None

    return call
