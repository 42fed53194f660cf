"""The largest safe learning rate for a sync interval and a horizon, from a coarse sweep (arXiv 2607.01083).

Each run refreshes its behaviour policy every S steps: batch k is sampled by version floor(k / S) S. Two laws are
fitted to where runs collapse: S times the largest stable rate is constant, and so is rate times the steps until
collapse. The laws are the paper's; how they are fitted is our choice (``stretto.observe.calibration``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stretto.kernel.errors import ConfigError
from stretto.kernel.json import Jsonable
from stretto.observe.calibration import Laws, Trial, fit_laws
from stretto.observe.canvas import Canvas
from stretto.sweep.cells import Cell, Record, run_cells
from stretto.sweep.compare import collapse_of


@dataclass(frozen=True)
class Calibration:
    """``rate``: the largest safe learning rate for ``sync_interval`` and ``horizon`` steps, ``safety`` included."""

    rate: float
    sync_interval: int
    horizon: int
    safety: float
    laws: Laws
    trials: list[Trial]

    def as_json(self) -> dict[str, Jsonable]:
        """The calibration as the JSON object that ``--json`` prints."""
        return {
            "rate": self.rate, "sync_interval": self.sync_interval, "horizon": self.horizon, "safety": self.safety,
            "interval_budget": self.laws.interval_budget, "horizon_budget": self.laws.horizon_budget,
            "largest": {str(interval): rate for interval, rate in self.laws.largest.items()},
            "collapsed": self.laws.collapsed, "censored": self.laws.censored,
            "trials": [asdict(t) for t in self.trials],
        }  # fmt: skip


def calibrate(
    source: str,
    settings: Sequence[str],
    intervals: Sequence[int],
    rates: Sequence[float],
    seeds: Sequence[int],
    out: Path,
    *,
    sync_interval: int,
    horizon: int,
    safety: float = 1.0,
    jobs: int = 2,
    done: Callable[[Record], None] = lambda record: None,
) -> Calibration:
    """Sweep the recipe with its own objective over ``intervals`` and ``rates``, fit the laws, apply them.

    ``ConfigError`` on bad input, and if some interval has no stable rate.
    """
    if not intervals or min(intervals) < 1:
        raise ConfigError(f"--sync = {list(intervals)}: sync intervals are 1 or more steps")
    if not rates or not all(0 < rate < math.inf for rate in rates) or len(set(rates)) != len(rates):
        raise ConfigError(f"--rates = {list(rates)}: learning rates are positive numbers, each given once")
    if sync_interval < 1 or horizon < 1 or not safety > 0:
        raise ConfigError(
            f"--interval = {sync_interval}, --horizon = {horizon}, --safety = {safety:g}: all must be positive"
        )
    cells = [
        Cell(
            {"sync_interval": interval, "rate": rate, "seed": seed},
            ("control.publish.name=every-k", f"control.publish.k={interval}", f"lag_bound={interval - 1}",
             f"learner.lr={rate!r}", f"seed={seed}", "allow_uncorrected=true", "eval.tasks=0", "eval.every=0"),
            refresh="window",
        )
        for interval in intervals
        for rate in rates
        for seed in seeds
    ]  # fmt: skip
    records = run_cells(source, settings, cells, out, jobs=jobs, done=done)
    trials = [Trial(r["sync_interval"], r["rate"], collapse_of(r)) for r in records]
    laws = fit_laws(trials)
    return Calibration(laws.rate(sync_interval, horizon, safety), sync_interval, horizon, safety, laws, trials)


def plot(calibration: Calibration, figure: Canvas) -> None:
    """Runs that held and runs that collapsed over the plane of sync interval and rate, with the fitted limit."""
    axes = figure.subplots()
    for collapsed, mark, label in ((False, "o", "held"), (True, "x", "collapsed")):
        chosen = [t for t in calibration.trials if (t.collapsed_at is not None) == collapsed]
        axes.loglog([t.sync_interval for t in chosen], [t.rate for t in chosen], mark, label=label)
    at = sorted({t.sync_interval for t in calibration.trials} | {calibration.sync_interval})
    axes.loglog(at, [calibration.laws.interval_budget / s for s in at], "-", lw=1, label="(S rate)* / S")
    axes.loglog([calibration.sync_interval], [calibration.rate], "*", ms=12, label="recommended")
    axes.set(xlabel="sync interval S (steps)", ylabel="learning rate", title="Where runs collapse")
    axes.legend()
