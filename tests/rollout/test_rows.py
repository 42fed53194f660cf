from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stretto.models.forward import KVShape
from stretto.rollout.kv import KVStore
from stretto.rollout.rows import arrange


@given(st.lists(st.integers(0, 4), max_size=12))
def test_arranging_sorts_into_runs_with_few_swaps(keys: list[int]) -> None:
    moved = list(keys)
    swaps = arrange(keys)
    for one, other in swaps:
        moved[one], moved[other] = moved[other], moved[one]
    assert moved == sorted(keys)
    assert len(swaps) <= sum(a != b for a, b in zip(keys, moved, strict=True))


@pytest.mark.parametrize("lengths", [(5, 3), (3, 5), (4, 0), (0, 4), (0, 0)])
def test_swapped_rows_carry_their_cache(lengths: tuple[int, int]) -> None:
    store = KVStore([KVShape(2, 3, 4)] * 2, slots=3, max_tokens=6, dtype=torch.float64)
    for layer in store.layers:
        layer.copy_(torch.randn_like(layer))
    before = [layer.clone() for layer in store.layers]
    store.swap(0, 2, *lengths)
    for old, new in zip(before, store.layers, strict=True):
        assert torch.equal(new[2, : lengths[0]], old[0, : lengths[0]])
        assert torch.equal(new[0, : lengths[1]], old[2, : lengths[1]])
        assert torch.equal(new[1], old[1])


def test_keys_and_values_read_back_what_was_written() -> None:
    store = KVStore([KVShape(2, 3, 4)] * 2, slots=2, max_tokens=6, dtype=torch.float64)
    keys, values = torch.randn(2, 2, 5, 3).double(), torch.randn(2, 2, 5, 4).double()
    store.write(1, keys, values)
    got = store.read(1, 5)
    assert torch.equal(got[0], keys)
    assert torch.equal(got[1], values)
    assert not any(layer[0].any() for layer in store.layers)
