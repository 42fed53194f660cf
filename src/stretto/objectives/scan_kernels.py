"""Compiled kernels of ``compress`` and ``scans`` (Numba): one pass over a row, float64 inside, no parallel threads.

``close``, ``open_`` and ``close_rewards`` go between [B,T] with a mask and closed rows [B,n] (``count`` [B] policy
tokens first, then zeros); the recursions work on closed rows. None of them branches on the mask's pattern, so that a
random mask costs no more than another. Results are cut at ``BOUND``; a row whose recursion overflows float64 runs once
more with every intermediate cut at ``HUGE``, so no infinity meets a 0 or its opposite. NaN at a policy token stays NaN.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from stretto.data.arrays import Bools, Ints, Reals
from stretto.objectives.compress import BOUND, HUGE


@njit(cache=True)
def close(x: Reals, mask: Bools, count: Ints, out: Reals) -> None:
    """[B,T] -> [B,n]."""
    for i in range(x.shape[0]):
        n = count[i]
        p = t = 0
        while p < n:
            out[i, p] = x[i, t]  # a masked entry is written over by the next one
            p += mask[i, t]
            t += 1
        for p in range(n, out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def open_(y: Reals, mask: Bools, out: Reals) -> None:
    """[B,n] -> [B,T]; 0 in masked places. n >= 1."""
    for i in range(out.shape[0]):
        p = 0
        for t in range(out.shape[1]):
            live = mask[i, t]
            p += live
            value = y[i, max(p - 1, 0)]
            out[i, t] = value if live else 0


@njit(cache=True)
def close_rewards(x: Reals, mask: Bools, length: Ints, count: Ints, out: Reals) -> None:
    """[B,T] -> [B,n], finite ``x`` between a policy token and the next one (before ``length``) added to the former."""
    for i in range(x.shape[0]):
        n = count[i]
        off = 0
        for t in range(length[i]):
            off |= (x[i, t] != 0) & (not mask[i, t])
        if not off:
            p = t = 0
            while p < n:
                out[i, p] = x[i, t]
                p += mask[i, t]
                t += 1
        else:
            p = n - 1
            t = length[i] - 1
            pending = 0.0
            while p >= 0:
                here = x[i, t]
                live = mask[i, t]
                out[i, p] = here + pending  # rewritten until the policy token itself has come
                p -= live
                pending += here if math.isfinite(here) else 0.0
                pending = 0.0 if live else pending
                t -= 1
        for p in range(n, out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def following(x: Reals, count: Ints, after: Reals, out: Reals) -> None:
    """out_p = x_{p+1}, ``after`` [B] at the last one."""
    for i in range(x.shape[0]):
        n = count[i]
        for p in range(n - 1):
            out[i, p] = x[i, p + 1]
        for p in range(max(n - 1, 0), out.shape[1]):
            out[i, p] = 0
        if n:
            out[i, n - 1] = after[i]


@njit(cache=True)
def residual(r: Reals, x: Reals, v: Reals, count: Ints, gamma: float, after: Reals, out: Reals) -> None:
    """out_p = r_p + gamma x_{p+1} - v_p, ``after`` [B] for x after the last one."""
    for i in range(x.shape[0]):
        n = count[i]
        for p in range(n - 1):
            out[i, p] = r[i, p] + gamma * x[i, p + 1] - v[i, p]
        for p in range(max(n - 1, 0), out.shape[1]):
            out[i, p] = 0
        if n:
            out[i, n - 1] = r[i, n - 1] + gamma * after[i] - v[i, n - 1]


@njit(cache=True)
def reverse_scan(a: Reals, b: Reals, count: Ints, init: Reals, out: Reals) -> None:
    """out_p = b_p + a_p out_{p+1}; ``a`` [B,n] or [B,1]; ``init`` [B] stands after the last one."""
    for i in range(b.shape[0]):
        n = count[i]
        y = _scan_row(a[i], b[i], n, init[i], math.inf, out[i])
        if not math.isfinite(y):
            _scan_row(a[i], b[i], n, init[i], HUGE, out[i])
        for p in range(n, out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def _scan_row(a: Reals, b: Reals, n: int, after: float, limit: float, out: Reals) -> float:
    step = 1 if a.shape[0] == b.shape[0] else 0
    y: float = np.float64(after)  # wide, whatever the rows are
    p = n - 1
    if limit == math.inf:
        while p > 0:  # two tokens at a time: half as long a chain of dependent operations
            near, far = np.float64(a[step * (p - 1)]), np.float64(a[step * p])
            shift = np.float64(b[p - 1]) + near * b[p]
            out[p] = _cut(b[p] + far * y, BOUND)
            y = shift + near * far * y
            out[p - 1] = _cut(y, BOUND)
            p -= 2
    while p >= 0:
        y = _cut(b[p] + a[step * p] * y, limit)
        out[p] = _cut(y, BOUND)
        p -= 1
    return y


@njit(cache=True, inline="always")
def _cut(y: float, limit: float) -> float:
    if y > limit:
        return limit
    if y < -limit:
        return -limit
    return y


@njit(cache=True)
def window_scan(a: Reals, b: Reals, x: Reals, count: Ints, k: int, out: Reals) -> None:
    """out_s = f_s(f_{s+1}(... f_{j-1}(x_j))), f_p(y) = b_p + a_p y, j = min(s + k, last), k >= 1; ``a`` [B,n]."""
    work = np.empty((3, b.shape[1]), np.float64)
    for i in range(b.shape[0]):
        n = count[i]
        if n and not math.isfinite(_window_row(a[i], b[i], x[i], n, k, work, out[i])):
            _window_row_cut(a[i], b[i], x[i], n, k, out[i])
        for p in range(n, out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def anchored_scan(
    delta: Reals, w: Reals, count: Ints, k: int, rho_bar: float, c_bar: float, gamma: float, decay: float, out: Reals
) -> None:
    """``window_scan`` with a = decay min(c_bar, w), b = min(rho_bar, w) delta, x_p = delta_p + gamma x_{p+1}."""
    width = delta.shape[1]
    work = np.empty((3, width), np.float64)
    x, a, b, factor = np.empty(width), np.empty(width), np.empty(width), np.full(1, gamma)
    for i in range(delta.shape[0]):
        n = count[i]
        for p in range(n):
            a[p] = decay * min(c_bar, w[i, p])
            b[p] = min(rho_bar, w[i, p]) * delta[i, p]
        if n:
            _scan_row(factor, delta[i], n, 0.0, math.inf, x)
            if not math.isfinite(_window_row(a, b, x, n, k, work, out[i])):
                _window_row_cut(a, b, x, n, k, out[i])
        for p in range(n, width):
            out[i, p] = 0


@njit(cache=True)
def _window_row(a: Reals, b: Reals, x: Reals, n: int, k: int, work: Reals, out: Reals) -> float:
    """One row; returns 0, or NaN where something overflowed."""
    last = n - 1
    near = max(last - k, 0)  # from here on the window reaches the last token
    check = 0.0 * _scan_row(a[near:], b[near:], last - near, x[last], math.inf, out[near:])
    out[last] = _cut(x[last], BOUND)
    # The maps from s to the end of its block of k, and from the start of j's block to j - 1 applied to x_j: together a
    # window of k, from which nothing is ever taken out.
    shift, slope, z = work[0], work[1], work[2]
    for start in range(0, near, k):
        y, tilt = 0.0, 1.0
        for q in range(k):
            s = start + k - 1 - q
            y = b[s] + a[s] * y
            tilt = a[s] * tilt
            shift[s], slope[s] = y, tilt
        check += 0.0 * y + 0.0 * tilt
    for start in range(k, last, k):
        y, tilt = 0.0, 1.0
        for j in range(start, min(start + k, last)):
            z[j] = y + tilt * x[j]
            y = y + tilt * b[j]
            tilt = a[j] * tilt
        check += 0.0 * y + 0.0 * tilt
    for s in range(near):
        out[s] = min(max(shift[s] + slope[s] * z[s + k], -BOUND), BOUND)
    return check


@njit(cache=True)
def _window_row_cut(a: Reals, b: Reals, x: Reals, n: int, k: int, out: Reals) -> None:
    """The same, window by window, cutting what overflows."""
    for s in range(n):
        j = min(s + k, n - 1)
        y: float = np.float64(x[j])
        for p in range(j - s):
            y = _cut(b[j - 1 - p] + a[j - 1 - p] * y, HUGE)
        out[s] = _cut(y, BOUND)
