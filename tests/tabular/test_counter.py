"""Counted random numbers: the same from everywhere, fair, independent over seeds, streams and places."""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from stretto.kernel.splitmix import GOLDEN, MASK, next64
from stretto.tabular.counter import key, normal, normals, uniform, uniforms

KEYS = [0x3D5A0704879B1D3E, 0x1273CFA5AA605E39, 0x6799229AE4A12050]


@njit(parallel=True)
def _sums(seeds: np.ndarray, n: int) -> np.ndarray:
    out = np.empty(len(seeds))
    for i in prange(len(seeds)):
        k = key(seeds[i], 2)
        total = 0.0
        for j in range(n):
            total += uniform(k, j) * normal(k, n + j)
        out[i] = total
    return out


def test_python_compiled_loops_and_arrays_draw_the_same() -> None:
    k = key(3, 1)
    plain = next64(int(k) + 5 * GOLDEN & MASK) >> 11
    assert plain / 2**53 == uniform(k, 5) == uniforms(k, 10)[5] == uniforms(k, 2, 5)[0]
    assert normal(k, 4) == normals(k, 9)[4] == normals(k, 1, 4)[0]


def test_keys_stay_what_they_were() -> None:
    assert [int(key(seed, stream)) for seed, stream in ((0, 0), (3, 1), (2**62, 64))] == KEYS


def test_moments_and_independence() -> None:
    n = 200_000
    u, z = uniforms(key(0, 0), n), normals(key(0, 0), n)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * n)
    assert abs((u**2).mean() - 1 / 3) < 4 * np.sqrt(4 / 45 / n)
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    counts = np.bincount((u * 64).astype(int), minlength=64)
    assert ((counts - n / 64) ** 2 / (n / 64)).sum() < 63 + 5 * np.sqrt(126)
    others = [uniforms(key(1, 0), n), uniforms(key(0, 1), n), np.roll(u, 1), np.roll(u, 7)]
    for other in others:
        assert abs(np.corrcoef(u, other)[0, 1]) < 4 / np.sqrt(n)


def test_the_number_of_threads_changes_nothing() -> None:
    import numba

    seeds = np.arange(12)
    whole = _sums(seeds, 100)
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert np.array_equal(_sums(seeds, 100), whole)
    finally:
        numba.set_num_threads(before)
