"""Rates: the slope of an error's mean over seeds on logarithmic axes, with its interval; points on such an axis."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number


@dataclass(frozen=True)
class Slope:
    """``value``, and the 95 % bootstrap interval ``low`` .. ``high`` over seeds; ``level``: the fitted line is
    exp(level) x^value."""

    value: float
    low: float
    high: float
    level: float


def loglog_slope(
    x: ArrayLike, y: ArrayLike, decades: float | None = None, resamples: int = 400, seed: int = 0, median: bool = False
) -> Slope:
    """Least squares of log(mean over seeds of y) on log x (``median``: of the median). ``x`` [n] increasing and
    positive, ``y`` [seeds,n] or [n]; ``decades``: only x >= max(x) / 10^decades (None: all). The interval is the
    seeds' percentile bootstrap (one seed: just the value). ``ConfigError`` if fewer than three points are left or a
    mean isn't positive."""
    where = "loglog_slope"
    xs = array(where, "x", x, (None,))
    ys = np.atleast_2d(array(where, "y", y))
    if ys.ndim != 2 or ys.shape[1] != len(xs) or not len(ys):
        raise ConfigError(f"{where}: y has shape {list(np.shape(y))}; it must be [seeds, {len(xs)}] like x")
    if not (len(xs) and xs[0] > 0 and (np.diff(xs) > 0).all()):
        raise ConfigError(f"{where}: x must be positive and increasing")
    if decades is not None:
        decades = number(where, "decades", decades, above=0)
        kept = xs >= xs[-1] / 10 ** min(decades, 300) * (1 - 1e-12)
        xs, ys = xs[kept], ys[:, kept]
    if len(xs) < 3:
        raise ConfigError(f"{where}: only {len(xs)} points of x are left; give more checkpoints or more decades")
    middle = np.median if median else np.mean
    resamples = int(number(where, "resamples", resamples, 1, whole=True))
    seed = int(number(where, "seed", seed, 0, whole=True))
    if not (middle(ys, 0) > 0).all():
        name = "median" if median else "mean"
        raise ConfigError(f"{where}: the {name} of y must be positive at each x to have a logarithm")
    value, level = _fit(xs, middle(ys, 0))
    low = high = value
    if len(ys) > 1:

        def resampled(rows: Floats) -> float:
            mean = middle(ys[rows.astype(int)], 0)
            return _fit(xs, mean)[0] if (mean > 0).all() else np.nan

        with warnings.catch_warnings():  # a resample without a logarithm is NaN, and left out below
            warnings.simplefilter("ignore", stats.DegenerateDataWarning)
            found = stats.bootstrap(
                (np.arange(len(ys)),), resampled, n_resamples=resamples, vectorized=False, method="percentile",
                rng=np.random.default_rng(seed),
            )  # fmt: skip
        slopes = found.bootstrap_distribution
        low, high = (float(v) for v in np.nanpercentile(slopes, [2.5, 97.5]))
    return Slope(value, low, high, level)


def log_spaced(last: int, points: int, first: int = 1) -> Ints:
    """At most ``points`` >= 2 different whole numbers from ``first`` to ``last``, evenly spaced in their logarithm.
    ``ConfigError`` unless 1 <= ``first`` <= ``last``."""
    begin = number("log_spaced", "first", first, 1, whole=True)
    end = number("log_spaced", "last", last, begin, whole=True)
    count = int(number("log_spaced", "points", points, 2, whole=True))
    return np.unique(np.round(np.geomspace(begin, end, count)).astype(np.int64))


def _fit(x: Floats, y: Floats) -> tuple[float, float]:
    line = stats.linregress(np.log(x), np.log(y))
    return float(line.slope), float(line.intercept)
