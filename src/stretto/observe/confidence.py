"""Intervals for means over a few seeds, and for shares of a few tasks."""

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


def wilson_interval(share: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """(low, high): the score interval of a ``share`` of ``n`` independent tasks (Wilson, JASA 1927); ``z``: standard
    errors, 1.96 for 95 %. Unlike plus and minus a standard error it keeps its width at 0 and 1."""
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, middle - half), min(1.0, middle + half)
