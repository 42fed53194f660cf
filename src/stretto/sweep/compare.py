"""Compare objectives at exact lags: final and mean accuracy with intervals, collapse, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from stretto.config.load import load_config
from stretto.kernel.errors import ConfigError, InvariantError
from stretto.kernel.json import Jsonable
from stretto.observe.calibration import collapse_step
from stretto.observe.confidence import t_interval
from stretto.sweep.arms import Arm
from stretto.sweep.cells import Cell, Record, run_cells

STALE = 32
"""Lags from here on count as stale when a comparison says who collapses."""
_WINDOW = 10


@dataclass(frozen=True)
class Point:
    """One objective at one lag over the seeds. Accuracies are means with 95 % Student intervals (low, high): ``final``
    of the last evaluation, ``area`` of all of them over the steps (the area under the curve as a mean height).
    ``collapsed``: runs that ended below half of where they started, or with an error. ``fell``: runs whose reward fell
    below 70 % of its best on the way (``collapse_of``), whether it recovered or not."""

    arm: str
    lag: int
    seeds: int
    final: tuple[float, float, float]
    area: tuple[float, float, float]
    collapsed: int
    fell: int
    errors: int
    start: float
    wall_s: float
    virtual_s: float

    @property
    def mostly_collapsed(self) -> bool:
        """Whether more than half of the seeds collapsed."""
        return 2 * self.collapsed > self.seeds


@dataclass(frozen=True)
class Comparison:
    """All runs (``records``), and the points of each objective and lag in the order asked for."""

    source: str
    arms: list[Arm]
    lags: list[int]
    seeds: list[int]
    points: list[Point]
    records: list[Record]

    def point(self, arm: str, lag: int) -> Point:
        """The point of one objective at one lag."""
        return next(p for p in self.points if (p.arm, p.lag) == (arm, lag))

    def verdicts(self) -> dict[str, str]:
        """Per objective: ``collapses`` (in most seeds at some lag of 32 or more; below that, in most seeds at the
        largest), else by the 95 % interval of the final accuracy at the largest lag: ``holds`` (all of it is at or
        above where the runs started), ``fades`` (all below), ``undecided`` (it covers the start, or one seed has
        none)."""
        out = {}
        for arm in self.arms:
            points = [self.point(arm.label, lag) for lag in self.lags]
            stale = [p for p in points if p.lag >= STALE] or points[-1:]
            if any(p.mostly_collapsed for p in stale):
                out[arm.label] = "collapses"
            else:
                out[arm.label] = _against_start(stale[-1])
        return out

    def as_json(self) -> dict[str, Jsonable]:
        """The comparison as the JSON object that ``--json`` prints."""
        return {
            "recipe": self.source,
            "lags": self.lags,
            "seeds": self.seeds,
            "verdicts": self.verdicts(),
            "points": [asdict(p) for p in self.points],
        }


def compare(
    source: str,
    settings: Sequence[str],
    arms: Sequence[Arm],
    lags: Sequence[int],
    seeds: Sequence[int],
    out: Path,
    *,
    jobs: int = 2,
    keep_runs: bool = False,
    done: Callable[[Record], None] = lambda record: None,
) -> Comparison:
    """Rehearse every objective at every lag from every seed: the same prompts, the same sampling noise and the same
    initial model for all objectives of a seed, and batch k always sampled by version max(0, k - lag).

    ``ConfigError`` if the recipe evaluates nothing, or ends before a lag is reached.
    """
    config = load_config(source, list(settings))
    if lags and 0 < config.max_steps <= max(lags):
        raise ConfigError(
            f"--lag {max(lags)} is never reached: max_steps = {config.max_steps}, and batch k has a lag of at most k "
            "(the first is 0). Raise max_steps, or lower the lag"
        )
    if not config.eval.tasks or not config.eval.every:
        raise ConfigError("a comparison needs evaluations: set eval.tasks and eval.every in the recipe")
    critic = config.learner.critic.kind
    cells = [
        Cell({"arm": arm.label, "lag": lag, "seed": seed}, (*arm.settings(critic), f"lag_bound={lag}", f"seed={seed}"))
        for seed in seeds
        for lag in lags
        for arm in arms
    ]
    records = run_cells(source, settings, cells, out, jobs=jobs, keep_runs=keep_runs, done=done)
    check_exact(records)
    points = [
        _point(arm.label, lag, [r for r in records if r["arm"] == arm.label and r["lag"] == lag])
        for arm in arms
        for lag in lags
    ]
    return Comparison(source, list(arms), list(lags), list(seeds), points, records)


def check_exact(records: Sequence[Record]) -> None:
    """``InvariantError`` unless the lag was exact in each run, and the first batch, sampled before anything differs,
    the same for all of a seed."""
    for record in records:
        if not record["exact_lag"] and "error" not in record:
            raise InvariantError(f"{record['name']}: staleness was not exactly the lag, so nothing can be compared")
    first: dict[int, tuple[str, float | None]] = {}
    for record in records:
        reward = (record["series"]["reward/trained/mean"] or [None])[0]
        name, other = first.setdefault(record["seed"], (record["name"], reward))
        if reward is not None and other is not None and reward != other:
            raise InvariantError(
                f"{record['name']} and {name} started from different data (first rewards {reward} and {other}): "
                "delete the results and compare again"
            )


def _against_start(point: Point) -> str:
    _, low, high = point.final
    return "holds" if low >= point.start else "fades" if high < point.start else "undecided"


def _point(arm: str, lag: int, records: Sequence[Record]) -> Point:
    finals = [final_accuracy(r) for r in records]
    starts = [r["accuracy"][0][1] for r in records if r["accuracy"]]
    return Point(
        arm, lag, len(records), t_interval(finals), t_interval([mean_accuracy(r) for r in records]),
        sum(collapsed(r) for r in records), sum(collapse_of(r) is not None for r in records),
        sum("error" in r for r in records),
        float(np.mean(starts)) if starts else math.nan,
        float(np.mean([r.get("wall_s", math.nan) for r in records])),
        float(np.mean([r.get("virtual_s", math.nan) for r in records])),
    )  # fmt: skip


def final_accuracy(record: Record) -> float:
    """Accuracy of the last evaluation of a run's ``record``; 0 for a run that ended with an error, whatever it was
    before."""
    return 0.0 if "error" in record or not record["accuracy"] else float(record["accuracy"][-1][1])


def mean_accuracy(record: Record) -> float:
    """Area under the curve of the evaluations, as its mean height over the steps."""
    if not record["accuracy"]:
        return 0.0
    steps, values = np.array(record["accuracy"], float).T
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0])) if steps[-1] > steps[0] else float(values[0])


def collapsed(record: Record) -> bool:
    """Accuracy at the end below half of that at the start, or ended with an error."""
    return "error" in record or (bool(record["accuracy"]) and final_accuracy(record) < 0.5 * record["accuracy"][0][1])


def collapse_of(record: Record) -> int | None:
    """Step (from 1) at which the run collapsed by its rewards, None if it didn't: the first at which the trailing mean
    of 10 steps lies below 70 % of its best (arXiv 2607.01083; the detector's details are our choice), whether it
    recovers later or not; or from which on it stays below half of the first reward, for runs that never had a best; or
    at which the run ended with an error."""
    rewards = [r for r in record["series"]["reward/trained/mean"] if r is not None]
    step = collapse_step(rewards, window=_WINDOW)
    if step is None:
        step = _never_came_back(rewards)
    return step + 1 if step is not None else len(rewards) + 1 if "error" in record else None


def _never_came_back(rewards: Sequence[float]) -> int | None:
    if len(rewards) < _WINDOW:
        return None
    low = np.convolve(rewards, np.full(_WINDOW, 1 / _WINDOW), "valid") < 0.5 * rewards[0]
    if not low[-1]:
        return None
    high = np.flatnonzero(~low)
    return int(high[-1]) + _WINDOW if high.size else _WINDOW - 1
