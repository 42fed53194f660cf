"""Means that a few wild samples can't move: trimmed mean, median of means, and how much to trim."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.tabular.arguments import array, number

MEAN, MEDIAN_OF_MEANS, TRIMMED = 0, 1, 2
MOST_TRIM = 0.45


def trimmed_mean(x: ArrayLike, trim: float) -> float | Floats:
    """Mean of ``x`` [..., n] along its last axis without the ceil(trim n) smallest and as many largest samples; at
    least one, the median, or the two in the middle, is left. ``trim`` in [0, 1/2). A float if ``x`` is [n]."""
    samples = _samples("trimmed_mean", x)
    trim = number("trimmed_mean", "trim", trim, 0, below=0.5)
    return _along(samples, TRIMMED, trim, 1)


def median_of_means(x: ArrayLike, block: int) -> float | Floats:
    """Median over the means of blocks of ``block`` consecutive samples of ``x`` [..., n] along its last axis. Samples
    after the last full block are left out; fewer than ``block`` are one block [inferred]. A float if ``x`` is [n]."""
    samples = _samples("median_of_means", x)
    block = min(int(number("median_of_means", "block", block, 1, whole=True)), samples.shape[-1])
    return _along(samples, MEDIAN_OF_MEANS, 0.0, block)


def trim_for(share: float, samples: int | None = None) -> float:
    """Share to drop at each end where a ``share`` < 1/2 of samples is corrupted: min(.45, 1.5 share + .005), 0 without
    corruption [inferred]. With the number of ``samples`` n, at least share + 3 sqrt(share / n): then more outliers
    than that are rare."""
    share = number("trim_for", "share", share, 0, below=0.5)
    if share == 0:
        return 0.0
    trim = 1.5 * share + 0.005
    if samples is not None:
        n = number("trim_for", "samples", samples, 1, whole=True)
        trim = max(trim, share + 3 * math.sqrt(share / n))
    return min(MOST_TRIM, trim)


def local_share(share: float, visits: ArrayLike) -> Floats:
    """Corrupted share of what is recorded at each pair [S,A], when a ``share`` of steps is recorded at a uniform state
    and so, under a uniform behaviour, at a uniform pair: e u / ((1 - e) mu + e u), u = 1 / (S A), mu = ``visits``
    [S,A] the share of time at each pair."""
    share = number("local_share", "share", share, 0, below=0.5)
    mu = array("local_share", "visits", visits, (None, None))
    number("local_share", "smallest of visits", mu.min(initial=0), 0)
    number("local_share", "sum of visits", mu.sum(), 1 - 1e-9, 1 + 1e-9)
    wrong = share / mu.size
    total = (1 - share) * mu + wrong
    return np.divide(wrong, total, out=np.zeros_like(mu), where=total > 0)


@njit(cache=True)
def estimate(y: Floats, kind: int, trim: float, block: int) -> float:
    """The mean (``kind`` 0), median of means (1) or trimmed mean (2) of ``y`` [n], n >= 1, in sample order; may
    reorder ``y``. For compiled loops: nothing is checked."""
    n = y.size
    if kind == MEAN:
        return _mean(y, 0, n)
    if kind == MEDIAN_OF_MEANS:
        blocks = n // block
        if blocks == 0:
            return _mean(y, 0, n)
        for i in range(blocks):
            y[i] = _mean(y, i * block, (i + 1) * block)  # block i starts at or after i: nothing unread is lost
        means = y[:blocks]
        means.sort()
        return 0.5 * (means[(blocks - 1) // 2] + means[blocks // 2])
    drop = min(math.ceil(trim * n * (1 - 1e-12)), (n - 1) // 2)  # .07 x 100 is a little more than 7 in floats
    if drop == 0:
        return _mean(y, 0, n)
    y.sort()
    return _mean(y, drop, n - drop)


@njit(cache=True)
def _mean(y: Floats, low: int, high: int) -> float:
    total = 0.0
    for i in range(low, high):
        total += y[i]
    return total / (high - low)


def _samples(where: str, x: ArrayLike) -> Floats:
    samples = array(where, "x", x)
    number(where, "samples in x", samples.shape[-1] if samples.ndim else 0, 1)
    return samples


def _along(x: Floats, kind: int, trim: float, block: int) -> float | Floats:
    rows = x.reshape(-1, x.shape[-1])
    out = np.array([estimate(row.copy(), kind, trim, block) for row in rows]).reshape(x.shape[:-1])
    return float(out) if out.ndim == 0 else out
