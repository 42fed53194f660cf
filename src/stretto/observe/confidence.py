"""Intervals for means over a few seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """(mean, low, high): the mean of ``values`` and its Student interval at ``level``, in their unit. The ends are NaN
    for a single value, and so is the mean of none."""
    from scipy import stats  # slow to import: not for those who only watch a run

    x = np.asarray(values, float)
    mean = float(x.mean()) if x.size else math.nan
    if x.size < 2:
        return mean, math.nan, math.nan
    error = float(stats.sem(x))
    if error == 0:  # SciPy has no interval without spread
        return mean, mean, mean
    low, high = stats.t.interval(level, x.size - 1, mean, error)
    return mean, float(low), float(high)
