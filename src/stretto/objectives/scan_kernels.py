"""Compiled kernels of ``compress`` and ``scans`` (Numba): one pass over a row, float64 inside, no parallel threads.

``close``, ``open_`` and ``close_rewards`` go between [B,T] with a mask and closed rows [B,n] (``count`` [B] policy
tokens first, then zeros); the recursions work on closed rows. None of them branches on the mask's pattern, so that a
random mask costs no more than another. Results are cut at ``BOUND``; a row whose recursion overflows float64 runs once
more with every intermediate cut at ``HUGE``, so no infinity meets a 0 or its opposite. NaN at a policy token stays NaN.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

Array = np.ndarray[Any, Any]

BOUND = 1e18
"""Results are cut here: one further ratio (at most e^40) and a sum over a batch still fit into float32."""
HUGE = 1e150
"""Intermediates are cut here where they overflow: the product of two still fits into float64."""


@njit(cache=True)
def close(x: Array, mask: Array, count: Array, out: Array) -> None:
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
def open_(y: Array, mask: Array, out: Array) -> None:
    """[B,n] -> [B,T]; 0 in masked places. n >= 1."""
    for i in range(out.shape[0]):
        p = 0
        for t in range(out.shape[1]):
            live = mask[i, t]
            p += live
            value = y[i, max(p - 1, 0)]
            out[i, t] = value if live else 0


@njit(cache=True)
def close_rewards(x: Array, mask: Array, length: Array, count: Array, out: Array) -> None:
    """[B,T] -> [B,n], finite ``x`` between a policy token and the next one (before ``length``) added to the former."""
    for i in range(x.shape[0]):
        p = count[i] - 1
        pending = 0.0
        t = length[i] - 1
        while p >= 0:
            here = x[i, t]
            live = mask[i, t]
            out[i, p] = here + pending  # rewritten until the policy token itself has come
            p -= live
            pending += here if math.isfinite(here) else 0.0
            pending = 0.0 if live else pending
            t -= 1
        for p in range(count[i], out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def following(x: Array, count: Array, after: Array, out: Array) -> None:
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
def residual(r: Array, x: Array, v: Array, count: Array, gamma: float, after: Array, out: Array) -> None:
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
def reverse_scan(a: Array, b: Array, count: Array, init: Array, out: Array) -> None:
    """out_p = b_p + a_p out_{p+1}; ``a`` [B,n] or [B,1]; ``init`` [B] stands after the last one."""
    for i in range(b.shape[0]):
        n = count[i]
        y = _scan_row(a[i], b[i], n, init[i], math.inf, out[i])
        if not math.isfinite(y):
            _scan_row(a[i], b[i], n, init[i], HUGE, out[i])
        for p in range(n, out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def _scan_row(a: Array, b: Array, n: int, after: float, limit: float, out: Array) -> float:
    full = a.shape[0] == b.shape[0]
    y: float = np.float64(after)  # wide, whatever the rows are
    if limit == math.inf:
        for k in range(n):
            p = n - 1 - k
            y = b[p] + a[p if full else 0] * y
            out[p] = _cut(y, BOUND)
        return y
    for k in range(n):
        p = n - 1 - k
        y = _cut(b[p] + a[p if full else 0] * y, limit)
        out[p] = _cut(y, BOUND)
    return y


@njit(cache=True, inline="always")
def _cut(y: float, limit: float) -> float:
    if y > limit:
        return limit
    if y < -limit:
        return -limit
    return y


@njit(cache=True)
def window_scan(a: Array, b: Array, x: Array, count: Array, k: int, out: Array) -> None:
    """out_s = f_s(f_{s+1}(... f_{j-1}(x_j))), f_p(y) = b_p + a_p y, j = min(s + k, last), k >= 1; ``a`` [B,n]."""
    z = np.empty(b.shape[1], np.float64)
    for i in range(b.shape[0]):
        n = count[i]
        if n and math.isnan(_window_row(a[i], b[i], x[i], n, k, math.inf, z, out[i])):
            _window_row(a[i], b[i], x[i], n, k, HUGE, z, out[i])
        for p in range(n, out.shape[1]):
            out[i, p] = 0


@njit(cache=True)
def _window_row(a: Array, b: Array, x: Array, n: int, k: int, limit: float, z: Array, out: Array) -> float:
    """One row; returns 0, or NaN where something overflowed."""
    last = n - 1
    near = max(last - k, 0)  # from here on the window reaches the last token
    y = _scan_row(a[near:], b[near:], last - near, x[last], limit, out[near:])
    out[last] = _cut(x[last], BOUND)
    check = 0.0 * y
    # z_j: the maps from the start of j's block of k up to j - 1, applied to x_j
    for start in range(k, last, k):
        slope, shift = 1.0, 0.0
        for j in range(start, min(start + k, last)):
            z[j] = shift + slope * x[j]
            shift = shift + slope * b[j]
            slope = slope * a[j]
            if limit < math.inf:
                z[j], shift, slope = _cut(z[j], limit), _cut(shift, limit), _cut(slope, limit)
    # the maps from s to the end of its block, applied to z_{s+k}: a window of k, from which nothing is ever taken out
    for start in range(0, near, k):
        slope, shift = 1.0, 0.0
        for q in range(k):
            s = start + k - 1 - q
            shift = b[s] + a[s] * shift
            slope = a[s] * slope
            if limit < math.inf:
                shift, slope = _cut(shift, limit), _cut(slope, limit)
            if s < near:
                y = shift + slope * z[s + k]
                check += 0.0 * y
                out[s] = _cut(y, BOUND)
    return check
