"""The engine's steps for compiled loops over two firms; ``engine.Engine`` is the same in plain Python.

``ring_t``, ``ring_x`` [2, C] hold the C last prices (or their numbers) of each firm and when they were set; ``head``
[2] the newest entry, ``read`` [2] the newest that a rival may see.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from stretto.data.arrays import Floats, Ints
from stretto.games.pricing.engine import Clocks


def capacity(clocks: Clocks) -> int:
    """Entries that a ring needs: as many as a clock fires within the latency, twelve standard deviations on top. A
    ring that still runs over says so (``push``)."""
    mean = clocks.rate * clocks.delay
    return 1 << (int(mean + 12 * math.sqrt(mean)) + 16).bit_length()  # a power of two: places by masking


@njit(cache=True, error_model="numpy")
def gap_of(u: float, rate: float) -> float:
    """The time to the next event of two clocks of ``rate`` each, from one uniform."""
    return -math.log1p(-u) / (2 * rate)


@njit(cache=True, error_model="numpy")
def accrue(flow: Floats, kept: Floats, profit: Floats, gap: float, rho: float) -> None:
    """Adds a piece of constant profits to what both firms earned since their own events."""
    gone, left = -math.expm1(-rho * gap), math.exp(-rho * gap)
    for i in range(2):
        flow[i] += kept[i] * gone * profit[i]
        kept[i] *= left


@njit(cache=True, error_model="numpy")
def start(ring_t: Floats, ring_x: Floats, head: Ints, read: Ints, firm: int, x: float) -> None:
    """Begin ``firm``'s record of prices with ``x``, which was in force before all time."""
    ring_t[firm, 0], ring_x[firm, 0] = -math.inf, x
    head[firm] = read[firm] = 0


@njit(cache=True, error_model="numpy")
def latest(ring_t: Floats, ring_x: Floats, head: Ints, read: Ints, firm: int, t: float, delay: float) -> float:
    """What ``firm`` had set by t - delay; times may not decrease from call to call."""
    mask = ring_t.shape[1] - 1
    while read[firm] < head[firm] and ring_t[firm, (read[firm] + 1) & mask] + delay <= t:
        read[firm] += 1
    return ring_x[firm, read[firm] & mask]


@njit(cache=True, error_model="numpy")
def push(
    ring_t: Floats, ring_x: Floats, head: Ints, read: Ints, firm: int, t: float, x: float | np.float32, delay: float
) -> bool:
    """``firm`` sets ``x`` at t. False if that overwrote what a rival may still see."""
    latest(ring_t, ring_x, head, read, firm, t, delay)
    head[firm] += 1
    mask = ring_t.shape[1] - 1
    ring_t[firm, head[firm] & mask], ring_x[firm, head[firm] & mask] = t, x
    return head[firm] - read[firm] <= mask
