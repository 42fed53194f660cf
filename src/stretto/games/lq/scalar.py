"""The two small solves of a Cournot learner, compiled: the Riccati equation of one firm, and least squares in three.

Written in scalars so that they cost nanoseconds; ``riccati`` and ``numpy.linalg.solve`` are their oracles. Calling
``f.py_func`` runs the same lines in plain Python.
"""

from __future__ import annotations

import math

from numba import njit

_TINY = 1e-9


@njit(cache=True)
def firm_gain(
    a0: float, a1: float, bb: float, c: float, k: float, beta: float, timing: int
) -> tuple[float, float, bool]:
    """(K0, K1, found) of a firm whose model is p' = a0 + a1 p + bb q: the fixed point that the discounted Riccati
    step reaches from zero. In one price it has a closed form: p11 is the larger root of

        beta bb^2 p11^2 + (own (1 - beta a1^2) + 2 beta bb a1 seen) p11 + seen^2 = 0

    (p01 is linear, p00 never enters the gain). ``found`` False: no such root, the equation is singular."""
    if timing == 2:
        own, free, seen = k / 2 - bb, (c - a0) / 2, -a1 / 2
    else:
        own, free, seen = k / 2, c / 2, -0.5
    linear = own * (1 - beta * a1 * a1) + 2 * beta * bb * a1 * seen
    inside = linear * linear - 4 * beta * bb * bb * seen * seen
    if not (own > 0 and linear > 0 and inside >= 0 and abs(a0) < 1e12):  # NaN fails too
        return 0.0, 0.0, False
    p11 = -2 * seen * seen / (linear + math.sqrt(inside))
    den = own + beta * bb * bb * p11
    if not den > _TINY:
        return 0.0, 0.0, False
    K1 = (beta * bb * p11 * a1 + seen) / den
    p01 = (beta * a0 * a1 * p11 - (beta * bb * p11 * a0 + free) * K1) / (1 - beta * a1 + beta * bb * K1)
    return (beta * bb * (p01 + p11 * a0) + free) / den, K1, True


@njit(cache=True)
def solve3(
    n: float, x: float, y: float, xx: float, xy: float, yy: float, h0: float, h1: float, h2: float
) -> tuple[float, float, float]:
    """z of [[n, x, y], [x, xx, xy], [y, xy, yy]] z = h for a positive definite matrix (elimination: the constant
    first, which centres the rest). NaN if rounding has left it indefinite."""
    lx, ly = x / n, y / n
    dxx, dxy, dyy = xx - lx * x, xy - lx * y, yy - ly * y
    d1, d2 = h1 - lx * h0, h2 - ly * h0
    if not (dxx > 0 and dxx * dyy - dxy * dxy > 0):
        return math.nan, math.nan, math.nan
    lxy = dxy / dxx
    z2 = (d2 - lxy * d1) / (dyy - lxy * dxy)
    z1 = (d1 - dxy * z2) / dxx
    return (h0 - x * z1 - y * z2) / n, z1, z2


@njit(cache=True)
def solve2(n: float, x: float, xx: float, h0: float, h1: float) -> tuple[float, float]:
    """The solution (z0, z1) of [[n, x], [x, xx]] z = h for a positive definite matrix; NaN if rounding has left it
    indefinite."""
    lx = x / n
    dxx = xx - lx * x
    if not dxx > 0:
        return math.nan, math.nan
    z1 = (h1 - lx * h0) / dxx
    return (h0 - x * z1) / n, z1
