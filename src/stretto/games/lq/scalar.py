"""The two small solves of a Cournot learner, compiled: the Riccati equation of one firm, and least squares in three.

Written in scalars so that they cost nanoseconds; ``riccati`` and ``numpy.linalg.solve`` are their oracles. Calling
``f.py_func`` runs the same lines in plain Python.
"""

from __future__ import annotations

import math

from numba import njit

_TOL = 1e-12
_LIMIT = 2000
_TINY = 1e-9


@njit(cache=True)
def firm_gain(
    a0: float, a1: float, bb: float, c: float, k: float, beta: float, timing: int
) -> tuple[float, float, bool]:
    """(K0, K1, found) of a firm whose model is p' = a0 + a1 p + bb q: the discounted Riccati step from zero until the
    gain moves by less than 1e-12 (p00 never enters it). ``found`` False: singular, or not settled in 2000 steps."""
    if not abs(a0) < 1e12:  # nor NaN
        return 0.0, 0.0, False
    if timing == 2:
        own, free, seen = k / 2 - bb, (c - a0) / 2, -a1 / 2
    else:
        own, free, seen = k / 2, c / 2, -0.5
    p01, p11, K0, K1 = 0.0, 0.0, 0.0, 0.0
    for step in range(_LIMIT):
        den = own + beta * bb * bb * p11
        if not den > _TINY:
            return K0, K1, False
        g0 = beta * bb * (p01 + p11 * a0) + free
        g1 = beta * bb * p11 * a1 + seen
        new0, new1 = g0 / den, g1 / den
        moved = max(abs(new0 - K0), abs(new1 - K1))
        K0, K1 = new0, new1
        if step > 0 and moved < _TOL * max(1.0, abs(K0)):
            return K0, K1, True
        p01, p11 = beta * (p01 * a1 + p11 * a0 * a1) - g0 * K1, beta * p11 * a1 * a1 - g1 * K1
    return K0, K1, False


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
    """z of [[n, x], [x, xx]] z = h; NaN as above."""
    lx = x / n
    dxx = xx - lx * x
    if not dxx > 0:
        return math.nan, math.nan
    z1 = (h1 - lx * h0) / dxx
    return (h0 - x * z1) / n, z1
