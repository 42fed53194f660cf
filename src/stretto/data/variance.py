"""Do the rewards of a group differ? One answer for the filter, the learner and the metrics."""

from __future__ import annotations

import math
from typing import Any

TOLERANCE = 1e-6
"""Rewards that lie closer than this share of their size are equal: .3 and .1 + .2 differ by rounding alone, and the
learner sums rewards of tokens in float32 (rounding 6e-8 a sum). Not published: our choice."""
SMALLEST = 1e-12
"""and so are rewards that lie closer than this: .3 - (.1 + .2) is 0. Not published: our choice."""


def all_equal(low: Any, high: Any) -> Any:
    """Whether the lowest and the highest reward of a group are equal up to rounding: numbers, or arrays or tensors of
    them, one a group. False where one isn't finite."""
    spread, near = high - low, SMALLEST + TOLERANCE * (abs(low) / 2 + abs(high) / 2)  # halves: no overflow
    return (spread <= near) & (spread < math.inf)
