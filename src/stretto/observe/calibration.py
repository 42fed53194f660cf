"""Collapse: when a run did, and the largest step size at which one shouldn't (arXiv 2607.01083).

Two laws: the largest stable step size falls as one over the sync interval S, so ``S * rate`` has a constant limit;
and a collapse comes after a fixed sum of step sizes, so ``rate * steps`` has one, too. A sweep fits both limits.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stretto.kernel.errors import ConfigError, DataError


def collapse_step(
    rewards: Sequence[float],
    fraction: float = 0.7,
    window: int = 10,
    *,
    distances: Sequence[float] | None = None,
    limit: float = math.inf,
) -> int | None:
    """The step (from 0) at which a run collapsed; None: it did not in the steps seen (censored).

    ``rewards``: mean reward per step. Collapsed is the first step whose trailing mean over ``window`` steps lies
    below ``fraction`` of the largest such mean so far, counted only once that largest one is positive and above the
    first, so that a slow start is no collapse; or the first step whose ``distances`` (a ratio or KL per step)
    passes ``limit``, whichever comes first. Only whole windows count. [inferred: the paper gives no detector]

    ``DataError``: a reward that isn't finite; ``ConfigError``: ``fraction`` outside (0, 1), ``window`` below 1.
    """
    if not 0 < fraction < 1:
        raise ConfigError(f"collapse_step: fraction = {fraction} must lie between 0 and 1")
    if window < 1:
        raise ConfigError(f"collapse_step: window = {window} must be at least 1")
    values = np.asarray(rewards, float)
    fall = RewardFall(fraction, window)
    if values.ndim != 1 or not np.isfinite(values).all():
        raise DataError("collapse_step: rewards must be one finite number per step; leave out steps without a reward")
    for step, reward in enumerate(values.tolist()):
        fall.see(step, reward)
    steps = [step for step in (fall.at, _passed(distances, limit)) if step is not None]
    return min(steps, default=None)


class RewardFall:
    """``collapse_step`` by the reward, one step at a time, in constant memory. ``at``: the step, once it fell.
    ``errors``: the fall must also be so many standard errors of the two windows' difference, as means of a few
    answers a step fall by themselves."""

    def __init__(self, fraction: float = 0.7, window: int = 10, errors: float = 0.0) -> None:
        self.at: int | None = None
        self._errors = errors
        self._spread = 0.0  # variance of the best window's mean
        self._fraction, self._window = fraction, window
        self._last: deque[float] = deque(maxlen=window)
        self._first = self._best = -math.inf
        self.mean = self.best = math.nan
        """Of the window at which it fell, and of the best one before."""

    def see(self, step: int, reward: float) -> None:
        """The mean reward of this step, a finite number."""
        if self.at is not None:
            return
        self._last.append(reward)
        if len(self._last) < self._window:
            return
        smooth = sum(self._last) / self._window
        if self._best == -math.inf:
            self._first = max(smooth, 0.0)
        spread = sum((r - smooth) ** 2 for r in self._last) / max(1, self._window - 1) / self._window
        if smooth > self._best:
            self._best, self._spread = smooth, spread
        least = self._errors * math.sqrt(self._spread + spread)
        if smooth < self._fraction * self._best and self._best > self._first and self._best - smooth > least:
            self.at, self.mean, self.best = step, smooth, self._best


def _passed(distances: Sequence[float] | None, limit: float) -> int | None:
    if distances is None:
        return None
    passed = ~(np.asarray(distances, float) <= limit)  # a distance that is NaN has passed every limit
    return int(passed.argmax()) if passed.any() else None


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: weights synchronised every ``sync_interval`` steps, step size ``rate``, and the step at
    which it collapsed (``collapse_step``; None: not in the steps that it ran)."""

    sync_interval: int
    rate: float
    collapsed_at: int | None


@dataclass(frozen=True)
class Laws:
    """The fitted constants. ``interval_budget`` (S rate)*: the smallest over S of S times the largest stable rate;
    ``horizon_budget`` (rate T)*: the smallest over collapsed runs of rate times steps until collapse, infinite if
    none collapsed; ``largest``: S -> largest stable rate tried; ``collapsed`` and ``censored``: how many runs."""

    interval_budget: float
    horizon_budget: float
    largest: dict[int, float]
    collapsed: int
    censored: int

    def rate(self, sync_interval: int, horizon: int, safety: float = 1.0) -> float:
        """safety * min((S rate)* / sync_interval, (rate T)* / horizon): the largest safe step size for a run of
        ``horizon`` steps. Never increases with either. ``ConfigError`` on intervals or horizons below 1 and on a
        ``safety`` that isn't positive."""
        if not (_finite(sync_interval) and sync_interval >= 1):
            raise ConfigError(f"calibration: sync interval {sync_interval} must be at least 1 step")
        if not (_finite(horizon) and horizon >= 1):
            raise ConfigError(f"calibration: horizon {horizon} must be at least 1 step")
        if not (_finite(safety) and safety > 0):
            raise ConfigError(f"calibration: safety = {safety} must be positive")
        return safety * min(self.interval_budget / sync_interval, self.horizon_budget / horizon)


def fit_laws(table: Iterable[Trial]) -> Laws:
    """Fit both limits to a sweep (several runs at one (S, rate), say of several seeds, are stable if all are).

    The largest stable rate at S is the largest tried there such that it and every smaller one did not collapse; the
    second limit is fitted on collapsed runs alone. [inferred: the paper gives the laws, not how to fit them]

    ``ConfigError``: an empty table, a row that can't be, or an S at which even the smallest rate collapsed.
    """
    runs = list(table)
    if not runs:
        raise ConfigError("calibration: the table of runs is empty; run the sweep first")
    stable: dict[int, dict[float, bool]] = defaultdict(dict)
    for run in runs:
        _check(run)
        at = stable[run.sync_interval]
        at[run.rate] = at.get(run.rate, True) and run.collapsed_at is None
    largest = {interval: _largest(interval, at) for interval, at in sorted(stable.items())}
    budgets = [run.rate * run.collapsed_at for run in runs if run.collapsed_at is not None]
    return Laws(
        min(interval * rate for interval, rate in largest.items()),
        min(budgets, default=math.inf),
        largest,
        len(budgets),
        len(runs) - len(budgets),
    )


def _largest(interval: int, stable: dict[float, bool]) -> float:
    best = None
    for rate in sorted(stable):
        if not stable[rate]:
            break
        best = rate
    if best is None:
        raise ConfigError(
            f"calibration: every run at sync interval {interval} collapsed from the smallest step size "
            f"{min(stable):g} on; sweep smaller ones, too"
        )
    return best


def _check(run: Trial) -> None:
    if not (_finite(run.sync_interval) and run.sync_interval >= 1):
        raise ConfigError(f"calibration: sync interval {run.sync_interval} in the table must be at least 1 step")
    if not (_finite(run.rate) and run.rate > 0):
        raise ConfigError(f"calibration: step size {run.rate} in the table must be positive")
    if run.collapsed_at is not None and not (_finite(run.collapsed_at) and run.collapsed_at >= 1):
        raise ConfigError(f"calibration: a collapse at step {run.collapsed_at} in the table: must be at least 1")


def _finite(value: float) -> bool:
    return math.isfinite(value)
