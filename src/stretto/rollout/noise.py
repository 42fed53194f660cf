"""Sampling noise by counter: a uniform number is a function of (seed, trajectory, position, stream) alone.

No shared generator exists, so pausing, batching or moving a request can't change its tokens. The hash is the
finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014),
absorbed once per counter. NumPy only: the orchestrator uses it too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_A = np.uint64(0xBF58476D1CE4E5B9)
_B = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_SCALE = 2.0**-53


def _words(value: ArrayLike) -> NDArray[np.uint64]:
    """Integers as 64-bit words (negative ones in two's complement), at least 1-d so that they wrap silently."""
    if isinstance(value, int):
        return np.array([value & 0xFFFFFFFFFFFFFFFF], np.uint64)
    return np.atleast_1d(np.asarray(value)).astype(np.int64, copy=False).view(np.uint64)


def _absorb(state: NDArray[np.uint64], value: ArrayLike) -> NDArray[np.uint64]:
    z = (state ^ _words(value)) + _GOLDEN
    z = (z ^ (z >> _S30)) * _A
    z = (z ^ (z >> _S27)) * _B
    return z ^ (z >> _S31)


def hash_counters(seed: int, *counters: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits per element of the broadcast ``counters`` (integers); always at least 1-d."""
    state = _absorb(np.zeros(1, np.uint64), seed)
    for counter in counters:
        state = _absorb(state, counter)
    return state


def uniforms(seed: int, trajectory: ArrayLike, positions: ArrayLike, stream: ArrayLike = 0) -> NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1), shaped like the broadcast counters (at least 1-d).

    ``trajectory``, ``positions`` (absolute token positions) and ``stream`` are integers or integer arrays.
    """
    return to_unit(hash_counters(seed, trajectory, stream, positions))


def to_unit(bits: NDArray[Any]) -> NDArray[np.float64]:
    """The top 53 bits as a number in (0, 1): the centre of its interval, so neither 0 nor 1 occurs."""
    return np.minimum(((bits >> _S11).astype(np.float64) + 0.5) * _SCALE, 1.0 - 2.0**-53)
