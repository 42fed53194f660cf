"""Random numbers as functions of (seed, stream, i), for Python and for compiled loops alike.

Draw ``i`` never depends on what was drawn before: threads, order and skipped draws can't change a result. Draw ``i`` of
a key is output ``i`` of SplitMix64 started at the key.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numba import njit

from stretto.data.arrays import Floats
from stretto.kernel import splitmix

_GOLDEN = np.uint64(splitmix.GOLDEN)
_STREAM = np.uint64(0xD1B54A32D192ED03)
_S11, _ONE = np.uint64(11), np.uint64(1)
_UNIT = 1.0 / 9007199254740992.0  # 2^-53


next64: Callable[[np.uint64], np.uint64] = njit(cache=True, inline="always")(splitmix.next64)  # type: ignore[assignment]
"""SplitMix64 for compiled loops: uint64 to uint64."""


@njit(cache=True)
def key(seed: int, stream: int) -> np.uint64:
    """The key of a ``stream`` of draws of ``seed``; both whole numbers >= 0. 63 bits: it passes through Python."""
    first = next64((np.uint64(seed) - _ONE) * _GOLDEN + _ONE)
    return next64(first + np.uint64(stream) * _STREAM - _GOLDEN) >> _ONE


@njit(cache=True, inline="always")
def uniform(key: np.uint64, i: int) -> float:
    """Random number ``i`` >= 0 of a key: uniform on [0, 1), a multiple of 2^-53."""
    # a key that has been through Python comes back as a signed number
    return np.float64(next64(np.uint64(key) + np.uint64(i) * _GOLDEN) >> _S11) * _UNIT


@njit(cache=True)
def normal(key: np.uint64, i: int) -> float:
    """Draw ``i`` >= 0 of a key: standard normal (Box and Muller 1958), from uniforms 2i and 2i + 1."""
    radius = math.sqrt(-2.0 * math.log(1.0 - uniform(key, 2 * i)))
    return radius * math.cos(2.0 * math.pi * uniform(key, 2 * i + 1))


@njit(cache=True)
def uniforms(key: np.uint64, n: int, start: int = 0) -> Floats:
    """Random numbers ``start`` .. ``start + n - 1`` of a key as an array [n]; each equals ``uniform(key, i)``."""
    out = np.empty(n)
    for i in range(n):
        out[i] = uniform(key, start + i)
    return out


@njit(cache=True)
def normals(key: np.uint64, n: int, start: int = 0) -> Floats:
    """Standard normal numbers ``start`` .. ``start + n - 1`` of a key as an array [n]; each equals ``normal(key,
    i)``."""
    out = np.empty(n)
    for i in range(n):
        out[i] = normal(key, start + i)
    return out
