"""SplitMix64 (Steele, Lea and Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).

Random numbers here are functions of counters, never of a shared generator, so order, batching and threads can't change
them: sampling noise (``rollout.noise``), tasks and modelled durations (``envs.counter``), compiled loops
(``tabular.counter``). All of them are outputs of this generator.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GOLDEN = 0x9E3779B97F4A7C15
"""What the generator's state grows by between two outputs: 2^64 over the golden ratio, odd."""
MASK = (1 << 64) - 1
_A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_GOLDEN64, _A64, _B64 = np.uint64(GOLDEN), np.uint64(_A), np.uint64(_B)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def next64(state: int) -> int:
    """The 64 random bits that the generator in ``state`` gives next (its state is then ``state + GOLDEN``). One to one.
    ``state`` in [0, 2^64): a Python int, or a uint64 in a function compiled by Numba."""
    z = state + GOLDEN & MASK
    z = (z ^ (z >> 30)) * _A & MASK
    z = (z ^ (z >> 27)) * _B & MASK
    return z ^ (z >> 31)


def next64_each(states: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """``next64`` of each of ``states`` [...], at least 1-d (scalars would warn that they wrap). A third faster than
    with masks, which uint64 doesn't need."""
    z = states + _GOLDEN64
    z = (z ^ (z >> _S30)) * _A64
    z = (z ^ (z >> _S27)) * _B64
    return z ^ (z >> _S31)
