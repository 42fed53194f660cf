"""What the report shows, gathered in one pass over the events and reduced to a size that doesn't grow with the run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stretto.observe.samples import Sample, read_evaluations, read_samples, sample_steps
from stretto.observe.summary import Figures
from stretto.observe.tally import Event, Row
from stretto.observe.timeline import Timeline

MAX_POINTS = 500
"""points of a curve"""
SAMPLE_STEPS = 8
SAMPLES_PER_STEP = 4
HELD_OUT = 6
"""samples of an evaluation"""
MAX_PIECES = 500
MAX_FAULTS = 60


def collect(run_dir: Path, events: Iterable[Event]) -> dict[str, Any]:
    """The data of the page, ready for JSON: no NaN, no infinity."""
    figures, timeline = Figures(), Timeline()
    interval = figures.interval
    rows: list[Row] = []
    reasons: Counter[tuple[str, str]] = Counter()
    faults: list[dict[str, Any]] = []
    waits: dict[tuple[str, str], list[float]] = {}
    resumes: list[float] = []
    learner_names: dict[str, None] = {}
    last: Event = {}
    for event in events:
        row = figures(event)
        if row is not None:
            rows.append(row)
        timeline(event)
        name = event["e"]
        if name == "TrajEnd":
            reasons[event["ending"], event["reason"]] += len(event["traj"])
        elif name == "StepEnd":
            learner_names.update(dict.fromkeys(event["metrics"]))
        elif name == "Fault":
            faults.append({"t": event["t"], "where": event["where"], "what": event["what"]})
        elif name == "WorkerDown":
            faults.append({"t": event["t"], "where": event["worker"], "what": f"went down: {event['reason']}"})
        elif name == "Waiting":
            waits.setdefault((event["owner"], event["what"]), []).append(event["t"] - event["since"])
        elif name == "Resumed":
            resumes.append(event["t"])
        last = event
    steps = [row for row in rows if "eval/accuracy" not in row]
    # a worker reports its work late, in spans: here all of them are known
    for role, shares in timeline.idle([row["t"] for row in steps]).items():
        for row, share in zip(steps, shares, strict=True):
            row[f"idle_ratio/{role}"] = share
    return {
        "start": {key: value for key, value in interval.start.items() if key not in ("e", "t")},
        "summary": figures.summary(last),
        "findings": figures.health.data(),
        "ledger": interval.tally.ledger(),
        "staleness": sorted(interval.tally.stale_tokens.items()),
        "steps": downsample(steps),
        "step_count": len(steps),
        "learner_metrics": sorted(learner_names),
        "evals": [
            [r["step"], r["t"], _finite(r["eval/accuracy"]), r["eval/version"], r["eval/count"]]
            for r in rows if "eval/accuracy" in r
        ][-2000:],
        "timeline": timeline.data(),
        "reasons": [[ending, reason, n] for (ending, reason), n in reasons.most_common(30)],
        "faults": faults[-MAX_FAULTS:],
        "fault_count": len(faults),
        "waits": [
            [owner, what, len(spans), round(max(spans), 1)]
            for (owner, what), spans in sorted(waits.items(), key=lambda item: -max(item[1]))[:30]
        ],
        "resumes": resumes,
        "samples": choose_samples(run_dir),
        "held_out": read_evaluations(run_dir, HELD_OUT),
    }  # fmt: skip


def _finite(value: Any) -> float | None:
    """Five significant digits; None for what isn't a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.5g}")


def downsample(rows: Sequence[Row], points: int = MAX_POINTS) -> dict[str, list[float | None]]:
    """Columns of at most ``points`` entries: the mean of each bucket (max of maxima, last of step, time, ledger)."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    size = max(1, math.ceil(len(rows) / points))
    columns: dict[str, list[float | None]] = {}
    for name in names:
        column: list[float | None] = []
        for at in range(0, len(rows), size):
            values = [v for row in rows[at : at + size] if (v := _finite(row.get(name))) is not None]
            if not values:
                column.append(None)
            elif name.endswith("/max") or name == "sync/pause_s":
                column.append(max(values))
            elif name in ("step", "version", "t") or name.startswith("ledger/"):
                column.append(values[-1])
            else:
                column.append(_finite(sum(values) / len(values)))
        columns[name] = column
    return columns


def choose_samples(run_dir: Path) -> list[Sample]:
    """Samples of some steps, evenly spread with the first and the last; long ones are cut, which is said."""
    steps = sample_steps(run_dir)
    if len(steps) > SAMPLE_STEPS:
        steps = [steps[round(i * (len(steps) - 1) / (SAMPLE_STEPS - 1))] for i in range(SAMPLE_STEPS)]
    chosen = []
    for step in dict.fromkeys(steps):
        for sample in read_samples(run_dir, step)[:SAMPLES_PER_STEP]:
            pieces = sample["pieces"]
            if len(pieces) > MAX_PIECES:
                sample = {**sample, "pieces": pieces[:MAX_PIECES], "cut": len(pieces) - MAX_PIECES}
            chosen.append(sample)
    return chosen
