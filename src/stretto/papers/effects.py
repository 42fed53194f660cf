"""Effects asked of paired runs: their mean and interval, as a condition or as what a paper reports."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stretto.observe.confidence import t_interval
from stretto.papers.base import Check, Shown

Interval = tuple[float, float, float]
"""Mean, low and high."""
ABOVE = "mean, low, high (t, 95 %), paired by seed: above 0"


def effect(name: str, better: ArrayLike, worse: ArrayLike = 0.0) -> Check:
    """A row without a condition: the interval of ``better`` - ``worse`` [seeds], not reproduced unless all of it lies
    above 0. Of one seed nothing is said."""
    found = difference(better, worse)
    return Check(name, list(found), f"the effect: {ABOVE}", absent=found[1] <= 0)


def required(name: str, better: ArrayLike, worse: ArrayLike = 0.0, reference: Shown = None) -> Check:
    """A condition: all of the interval of ``better`` - ``worse`` [seeds] lies above 0. Of one seed nothing is asked."""
    found = difference(better, worse)
    return Check(name, list(found), ABOVE, reference, None if math.isnan(found[1]) else found[1] > 0)


def difference(one: ArrayLike, other: ArrayLike) -> Interval:
    """(mean, low, high) of ``one`` - ``other`` [seeds], seed by seed, at 95 %; the ends of one seed are NaN."""
    return t_interval(np.subtract(one, other).tolist())
