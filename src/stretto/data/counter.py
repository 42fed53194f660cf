"""Random numbers addressed by counters: a function of their arguments alone, never of a shared generator."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stretto.kernel.splitmix import GOLDEN, MASK, next64


def mix(*counters: int) -> int:
    """64 well-mixed bits of these integers, of either sign: SplitMix64's outputs, chained."""
    return mix_on(GOLDEN, *counters)


def mix_on(state: int, *counters: int) -> int:
    """Go on mixing: ``mix_on(mix(a, b), c) == mix(a, b, c)``."""
    for counter in counters:
        state = next64(state ^ (counter & MASK))
    return state


def mix_once(state: int, counter: int) -> int:
    """``mix_on(state, counter)`` for one counter >= 0, in less time."""
    return next64(state ^ counter)


def text_share(text: str, salt: str = "") -> float:
    """A number in [0, 1) that depends on ``text`` alone: splits problems into training and held-out ones."""
    digest = hashlib.blake2b(f"{salt}\0{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2.0**64


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, size: int) -> NDArray[np.int64]:
    """The order [size] in which epoch number ``epoch`` visits a finite set."""
    return np.random.Generator(np.random.Philox(key=mix(seed, epoch, size))).permutation(size)
