"""One SplitMix64: the reference generator's outputs, and the same from Python, arrays and compiled loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from stretto.data.counter import mix, mix_on, mix_once
from stretto.kernel.splitmix import GOLDEN, MASK, next64, next64_each
from stretto.rollout.noise import hash_counters

compiled = njit(next64)


def test_published_outputs() -> None:
    # the reference generator from state 1234567 (Vigna's splitmix64.c), and from 0
    state, found = 1234567, []
    for _ in range(3):
        found.append(next64(state))
        state = state + GOLDEN & MASK
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert next64(0) == 0xE220A8397B1DCDAF


@given(st.integers(0, MASK))
def test_python_arrays_and_compiled_loops_agree(state: int) -> None:
    assert int(next64_each(np.array([state], np.uint64))[0]) == next64(state) == int(compiled(np.uint64(state)))


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_a_chain_of_counters_is_the_same_for_numbers_and_arrays(seed: int, counter: int) -> None:
    assert int(hash_counters(seed, counter)[0]) == mix_on(0, seed, counter)
    assert mix(seed, counter) == mix_on(mix(seed), counter)
    assert mix_once(5, abs(counter)) == mix_on(5, abs(counter))
