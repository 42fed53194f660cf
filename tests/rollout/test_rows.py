from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stretto.models.forward import KVShape
from stretto.rollout.kv import KVStore
from stretto.rollout.rows import arrange


@given(st.lists(st.integers(0, 4), max_size=12))
def test_arranging_sorts_into_runs_and_moves_only_what_stands_wrong(keys: list[int]) -> None:
    moved = np.array(keys, np.int64)
    sources, targets = arrange(moved)
    assert sorted(sources.tolist()) == targets.tolist()
    moved[targets] = moved[sources]
    assert moved.tolist() == sorted(keys)
    assert len(targets) == sum(a != b for a, b in zip(keys, sorted(keys), strict=True))


@pytest.mark.parametrize("length", [5, 1, 6])
def test_moved_rows_carry_their_cache(length: int) -> None:
    store = KVStore([KVShape(2, 3, 4)] * 2, max_num_seqs=3, max_model_len=6, dtype=torch.float64)
    for layer in store.layers:
        layer.copy_(torch.randn_like(layer))
    before = [layer.clone() for layer in store.layers]
    store.copy_rows(np.array([0, 2]), np.array([2, 0]), length)
    for old, new in zip(before, store.layers, strict=True):
        assert torch.equal(new[2, :length], old[0, :length])
        assert torch.equal(new[0, :length], old[2, :length])
        assert torch.equal(new[2, length:], old[2, length:])
        assert torch.equal(new[1], old[1])


def test_keys_and_values_read_back_what_was_written() -> None:
    store = KVStore([KVShape(2, 3, 4)] * 2, max_num_seqs=2, max_model_len=6, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 5, 3).double(), torch.randn(2, 2, 5, 4).double()
    store.write(1, keys, values)
    got = store.read(1, 5)
    assert torch.equal(got[0], keys)
    assert torch.equal(got[1], values)
    assert not any(layer[0].any() for layer in store.layers)
