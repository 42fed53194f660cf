"""The figures that ``--json`` prints of a run, from its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stretto.observe.calibration import collapse_step
from stretto.observe.health import Health
from stretto.observe.interval import Interval
from stretto.observe.tally import Event, Row


def summarize(events: Iterable[Event]) -> dict[str, Any]:
    """``steps``, ``version``, ``eval`` {accuracy, initial_accuracy}, ``staleness`` {mean, max} over trained tokens,
    ``warnings``: what went wrong quietly (``stretto.observe.health.Health.data``),
    ``ledger``, ``clock_s`` (the run's clock at the last event), ``reward`` [[step, all, trained], ...],
    ``collapse``: the step at which the trained reward collapsed (``stretto.observe.calibration.collapse_step``), None
    if it has not in the steps seen; ``complete``, ``reason``.

    Accuracies are None without evaluation, rewards where there were none.
    """
    interval, health = Interval(), Health()
    rows: list[Row] = []
    last: Event = {}
    for event in events:
        health(event)
        row = interval(event)
        if row is not None:
            health.on_row(row)
            rows.append(row)
        last = event
    return {**summary_of(interval, rows, last), "warnings": health.data()}


def summary_of(interval: Interval, rows: Iterable[Row], last: Event) -> dict[str, Any]:
    """The same, of an interval that has seen all events; ``rows``: its rows, ``last``: the last event."""
    tally = interval.tally
    rows = list(rows)
    accuracies = [row["eval/accuracy"] for row in rows if "eval/accuracy" in row]
    trained = sum(tally.stale_tokens.values())
    total = sum(age * tokens for age, tokens in tally.stale_tokens.items())
    ended = last.get("e") == "RunEnd"
    return {
        "steps": tally.steps,
        "version": tally.version,
        "eval": {
            "accuracy": accuracies[-1] if accuracies else None,
            "initial_accuracy": accuracies[0] if accuracies else None,
        },
        "staleness": {"mean": total / trained if trained else 0.0, "max": max(tally.stale_tokens, default=0)},
        "ledger": {name: count for name, (count, _) in tally.ledger().items()},
        "clock_s": last.get("t", 0.0),
        "reward": [
            [row["step"], row.get("reward/all/mean"), row.get("reward/trained/mean")]
            for row in rows
            if "eval/accuracy" not in row
        ],
        "collapse": _collapse(rows),
        "complete": ended,
        "reason": last["reason"] if ended else None,
    }


def _collapse(rows: Iterable[Row]) -> int | None:
    steps = [(row["step"], row["reward/trained/mean"]) for row in rows if "reward/trained/mean" in row]
    at = collapse_step([reward for _, reward in steps])
    return None if at is None else steps[at][0]
