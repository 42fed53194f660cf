"""The figures that ``--json`` prints of a run, from its events."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypedDict

from stretto.kernel.logfile import Event
from stretto.observe.health import Health
from stretto.observe.interval import Interval, both
from stretto.observe.tally import Row


class Evaluations(TypedDict):
    """The first evaluation and the last one, None without any; ``count``: tasks of the last; ``evaluations``: how many
    there were."""

    accuracy: float | None
    initial_accuracy: float | None
    mean: float | None
    initial_mean: float | None
    count: int | None
    evaluations: int


class Staleness(TypedDict):
    """Over trained tokens, in versions."""

    mean: float
    max: int


class Summary(TypedDict):
    """What ``Figures.summary`` says of a run."""

    steps: int
    version: int
    eval: Evaluations
    staleness: Staleness
    ledger: dict[str, int]
    clock_s: float
    collapse: int | None
    complete: bool
    reason: str | None
    warnings: list[dict[str, str]]


def summarize(events: Iterable[Event]) -> Summary:
    """What ``Figures.summary`` says of these events."""
    figures = Figures()
    last: Event = {}
    for event in events:
        figures(event)
        last = event
    return figures.summary(last)


class Figures:
    """Listener: the rows of a run as they come, and what they sum up to. What it keeps doesn't grow with the run."""

    def __init__(self) -> None:
        self.interval, self.health = Interval(), Health()
        self._evals: list[tuple[float, float]] = []  # accuracy and mean reward of the first one and the last
        self._count: int | None = None  # tasks of the last one
        self._evaluations = 0
        self.evaluated: int | None = None
        """Version of the last evaluation."""

    def __call__(self, event: Event) -> Row | None:
        """Take one event; returns the row that it completes."""
        self.health(event)
        if event["e"] == "Eval":
            self.evaluated = event["version"]
        row = self.interval(event)
        if row is not None:
            self.see(row)
        return row

    @property
    def handlers(self) -> dict[str, Callable[[Event], object]]:
        """What takes in the events of each name that matters, those of ``ROWS`` apart."""
        found: dict[str, Callable[[Event], object]] = {**self.health.handlers}
        for name, handler in self.interval.handlers.items():
            found[name] = both(found[name], handler) if name in found else handler
        return found

    def see(self, row: Row) -> None:
        """The next row."""
        self.health.on_row(row)
        if "eval/accuracy" in row:
            self._evals[1:] = [(row["eval/accuracy"], row["eval/mean"])]
            self._count = row.get("eval/count")
            self._evaluations += 1

    def summary(self, last: Event) -> Summary:
        """``steps``, ``version``, ``eval`` {accuracy, initial_accuracy, mean, initial_mean, count (tasks),
        evaluations}, ``staleness`` {mean, max} over trained tokens, ``ledger``, ``clock_s`` (at the last event),
        ``collapse``: the step at which the trained reward collapsed (``Health.collapse``), None if it has not in the
        steps seen; ``complete``, ``reason``, ``warnings``: what went wrong quietly (``Health.data``). Those of ``eval``
        are None without one.

        ``last``: the last event so far.
        """
        tally = self.interval.tally
        first, final = (self._evals[0], self._evals[-1]) if self._evals else ((None, None), (None, None))
        trained = sum(tally.stale_tokens.values())
        total = sum(age * tokens for age, tokens in tally.stale_tokens.items())
        ended = last.get("e") == "RunEnd"
        return {
            "steps": tally.steps,
            "version": tally.version,
            "eval": {
                "accuracy": final[0],
                "initial_accuracy": first[0],
                "mean": final[1],
                "initial_mean": first[1],
                "count": self._count,
                "evaluations": self._evaluations,
            },
            "staleness": {"mean": total / trained if trained else 0.0, "max": max(tally.stale_tokens, default=0)},
            "ledger": {name: count for name, (count, _) in tally.ledger().items()},
            "clock_s": last.get("t", 0.0),
            "collapse": self.health.collapse,
            "complete": ended,
            "reason": last["reason"] if ended else None,
            "warnings": self.health.data(),
        }
