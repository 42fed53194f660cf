"""Blobs: each is freed exactly once, with its last reference, and its key is never another's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.kernel.errors import InvariantError
from stretto.pool.blobs import Blobs


def test_a_blob_lives_until_its_last_reference_is_released() -> None:
    blobs = Blobs()
    key = blobs.put(np.zeros(10, np.uint8), references=2)
    blobs.retain(key)
    assert [blobs.release(key) for _ in range(3)] == [False, False, True]
    assert (len(blobs), blobs.nbytes, blobs.stored, blobs.freed) == (0, 0, 1, 1)
    assert blobs.put(np.ones(1)) != key


def test_who_comes_too_late_or_with_a_wrong_key_is_told() -> None:
    blobs = Blobs()
    key = blobs.put(np.zeros(1))
    blobs.release(key)
    for use in (blobs.get, blobs.retain, blobs.release):
        with pytest.raises(InvariantError, match="its last reference was released"):
            use(key)
        with pytest.raises(InvariantError, match="it was never put"):
            use(99)
    with pytest.raises(InvariantError, match="nobody would free it"):
        blobs.put(np.zeros(1), references=0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=10), st.randoms(use_true_random=False))
def test_every_blob_is_freed_exactly_once_and_nothing_is_left(put: list[tuple[int, int]], random: object) -> None:
    blobs = Blobs()
    owed: list[int] = []
    for size, references in put:
        key = blobs.put(np.full(size, len(owed), np.uint8), references)
        owed += [key] * references
    random.shuffle(owed)  # type: ignore[attr-defined]
    freed = [key for key in owed if blobs.release(key)]
    assert sorted(freed) == sorted(set(owed))
    assert (len(blobs), blobs.nbytes, blobs.freed) == (0, 0, blobs.stored)
