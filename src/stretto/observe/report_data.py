"""What the report shows, gathered in two passes over the events, in a memory that doesn't grow with the run."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from stretto.kernel.logfile import Event
from stretto.observe.bounded import Counts, Curves, Thinned, rounded
from stretto.observe.samples import Sample, read_evaluations, read_samples, sample_steps
from stretto.observe.summary import Figures
from stretto.observe.tally import Row
from stretto.observe.timeline import Extent, Timeline

MAX_POINTS = 500
"""points of a curve"""
SAMPLE_STEPS = 8
SAMPLES_PER_STEP = 4
HELD_OUT = 6
"""samples of an evaluation"""
MAX_PIECES = 500
MAX_EVALS = 1000
MAX_FAULTS = 60
MAX_WAITS = 200
_NUMBER = re.compile(r"(?<![\w.-])\d+(\.\d+)?")


def collect(run_dir: Path, events: Callable[[], Iterable[Event]]) -> dict[str, object]:
    """The data of the page, ready for JSON: no NaN, no infinity. ``events`` begins the pass over the log anew."""
    figures, gathered, extent = Figures(), Gathered(), Extent()
    interval = figures.interval
    last: Event = {}
    for event in events():
        row = figures(event)
        if row is not None:
            gathered.row(row)
        extent(event)
        gathered(event)
        last = event
    steps = gathered.steps.columns()
    timeline = Timeline(extent, gathered.steps.exact("t"))
    for event in events():
        timeline(event)
    return {
        "start": {key: value for key, value in interval.start.items() if key not in ("e", "t")},
        "summary": figures.summary(last),
        "findings": figures.health.data(),
        "ledger": interval.tally.ledger(),
        "staleness": sorted(interval.tally.stale_tokens.items()),
        "steps": steps,
        "idle": timeline.idle(),  # a worker reports its work late, in spans: here all of them are known
        "timeline": timeline.data(),
        "samples": choose_samples(run_dir),
        "held_out": read_evaluations(run_dir, HELD_OUT),
        **gathered.data(),
    }


class Gathered:
    """Listener: rows and what else the page tells, in a memory that doesn't grow with the run."""

    def __init__(self) -> None:
        self.steps = Curves(MAX_POINTS)
        self._evals: Thinned[list[object]] = Thinned(MAX_EVALS)
        self._reasons: dict[str, Counts] = {}
        self._faults: deque[dict[str, object]] = deque(maxlen=MAX_FAULTS)
        self._fault_count = 0
        self._waits: dict[tuple[str, str], _Wait] = {}
        self._resumes: list[float] = []
        self._learner_names: dict[str, None] = {}

    def row(self, row: Row) -> None:
        """A row of metrics."""
        if "eval/accuracy" in row:
            self._evals.add([row["step"], row["t"], rounded(row["eval/accuracy"]), row["eval/version"],
                             row["eval/count"]])  # fmt: skip
        else:
            self.steps.add(row)

    def __call__(self, event: Event) -> None:
        """Take one event."""
        name = event["e"]
        if name == "TrajEnd":
            self._reasons.setdefault(event["ending"], Counts()).add(event["reason"], len(event["traj"]))
        elif name == "StepEnd":
            self._learner_names.update(dict.fromkeys(event["metrics"]))
        elif name == "Fault":
            self._fault(event["t"], event["where"], event["what"])
        elif name == "WorkerDown":
            self._fault(event["t"], event["worker"], f"went down: {event['reason']}")
        elif name == "Waiting":
            self._wait(event["owner"], event["what"], event["t"] - event["since"])
        elif name == "Resumed":
            self._resumes.append(event["t"])

    def _fault(self, t: float, where: str, what: str) -> None:
        self._fault_count += 1
        self._faults.append({"t": t, "where": where, "what": what})

    def _wait(self, owner: str, what: str, took: float) -> None:
        """Waits that differ in numbers only (of a version, of what is there so far) are told together, in the words of
        the longest one."""
        key = (owner, _NUMBER.sub("#", what))
        if key not in self._waits and len(self._waits) >= MAX_WAITS:
            key = owner, what = ("others", "other things")
        wait = self._waits.setdefault(key, _Wait(owner, what))
        wait.times += 1
        if took > wait.longest:
            wait.owner, wait.what, wait.longest = owner, what, took

    def data(self) -> dict[str, object]:
        """Its part of the page's data."""
        reasons = [(e, reason, n) for e, counts in self._reasons.items() for reason, n in counts.commonest(30)]
        waits = sorted(self._waits.values(), key=lambda wait: -wait.longest)
        return {
            "step_count": self.steps.count,
            "learner_metrics": sorted(self._learner_names),
            "evals": [*self._evals],
            "reasons": sorted(reasons, key=lambda item: -item[2])[:30],
            "faults": [*self._faults],
            "fault_count": self._fault_count,
            "waits": [[wait.owner, wait.what, wait.times, round(wait.longest, 1)] for wait in waits[:30]],
            "resumes": self._resumes,
        }


@dataclass(slots=True)
class _Wait:
    owner: str
    what: str
    times: int = 0
    longest: float = -math.inf


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
