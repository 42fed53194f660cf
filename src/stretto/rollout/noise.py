"""Sampling noise by counter: a uniform number is a function of (seed, noise key, position, stream) alone.

No shared generator exists, so pausing, batching or moving a request can't change its tokens. The hash is an
output of SplitMix64 per counter, chained. NumPy only: the orchestrator uses it too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stretto.kernel.splitmix import MASK, next64_each

_S11 = np.uint64(11)
_SCALE = 2.0**-53


def _words(value: ArrayLike) -> NDArray[np.uint64]:
    """Integers as 64-bit words (negative ones in two's complement), at least 1-d so that they wrap silently."""
    if isinstance(value, int):
        return np.array([value & MASK], np.uint64)
    return np.atleast_1d(np.asarray(value)).astype(np.int64, copy=False).view(np.uint64)


def hash_counters(seed: int, *counters: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits per element of the broadcast ``counters`` (integers); always at least 1-d."""
    state: NDArray[np.uint64] = next64_each(_words(seed))
    for counter in counters:
        state = next64_each(state ^ _words(counter))
    return state


def uniforms(seed: int, keys: ArrayLike, positions: ArrayLike, stream: ArrayLike = 0) -> NDArray[np.float64]:
    """Uniform numbers in the open interval (0, 1), shaped like the broadcast counters (at least 1-d).

    ``keys`` (trajectories' ``data.identity.noise_key``), ``positions`` (absolute token positions) and ``stream`` are
    integers or integer arrays.
    """
    return to_unit(hash_counters(seed, keys, stream, positions))


def to_unit(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """The top 53 bits as a number in (0, 1): the centre of its interval, so neither 0 nor 1 occurs."""
    return np.minimum(((bits >> _S11).astype(np.float64) + 0.5) * _SCALE, 1.0 - 2.0**-53)
