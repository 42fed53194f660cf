"""Random numbers as functions of (seed, stream, i), for Python and for compiled loops alike.

Draw ``i`` never depends on what was drawn before: threads, order and skipped draws can't change a result. The mixer is
the finaliser of SplitMix64 (Steele, Lea and Flood 2014); draw ``i`` of a key is output ``i`` of that generator started
at the key.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_STREAM = np.uint64(0xD1B54A32D192ED03)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_ONE = np.uint64(1)
_UNIT = 1.0 / 9007199254740992.0  # 2^-53


@njit(cache=True, inline="always")
def mix(x: np.uint64) -> np.uint64:
    """64 bits from 64 bits, one to one."""
    x = np.uint64(x)  # a key that has been through Python comes back as a signed number
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@njit(cache=True)
def key(seed: int, stream: int) -> np.uint64:
    """The key of a ``stream`` of draws of ``seed``; both whole numbers >= 0. 63 bits: it passes through Python."""
    return mix(mix(np.uint64(seed) * _GOLDEN + _ONE) + np.uint64(stream) * _STREAM) >> _ONE


@njit(cache=True, inline="always")
def uniform(key: np.uint64, i: int) -> float:
    """Draw ``i`` >= 0 of a key: uniform on [0, 1), a multiple of 2^-53."""
    return np.float64(mix(np.uint64(key) + (np.uint64(i) + _ONE) * _GOLDEN) >> _S11) * _UNIT


@njit(cache=True)
def normal(key: np.uint64, i: int) -> float:
    """Draw ``i`` >= 0 of a key: standard normal (Box and Muller 1958), from uniforms 2i and 2i + 1."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(key, 2 * i)))
    return radius * math.cos(2.0 * math.pi * uniform(key, 2 * i + 1))


@njit(cache=True)
def uniforms(key: np.uint64, n: int, start: int = 0) -> NDArray[np.float64]:
    """Draws ``start`` .. ``start + n - 1`` [n], equal to ``uniform`` of each."""
    out = np.empty(n)
    for i in range(n):
        out[i] = uniform(key, start + i)
    return out


@njit(cache=True)
def normals(key: np.uint64, n: int, start: int = 0) -> NDArray[np.float64]:
    """Draws ``start`` .. ``start + n - 1`` [n], equal to ``normal`` of each."""
    out = np.empty(n)
    for i in range(n):
        out[i] = normal(key, start + i)
    return out
