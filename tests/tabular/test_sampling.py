"""Alias tables hold exactly the probabilities that they were built from, and a draw reads them as it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError
from stretto.tabular.counter import key, uniforms
from stretto.tabular.sampling import AliasTable, alias_sample, alias_table


def law(tables: AliasTable, row: int, states: int) -> np.ndarray:
    """The probabilities that a row's columns add up to."""
    out = np.zeros(states)
    cut, both = tables.columns[row].T
    share = cut / len(cut)
    np.add.at(out, both.astype(int) >> tables.bits, share)
    np.add.at(out, both.astype(int) % 2**tables.bits, 1 / len(cut) - share)
    return out


@given(seed=st.integers(0, 10_000), states=st.integers(1, 40), concentration=st.sampled_from([0.01, 0.3, 1.0, 20.0]))
@settings(max_examples=60)
def test_the_tables_hold_the_law(seed: int, states: int, concentration: float) -> None:
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(states, concentration), size=5)
    p[rng.random(p.shape) < 0.4] = 0
    p[:, rng.integers(states)] += 1e-3
    p /= p.sum(1, keepdims=True)
    tables = alias_table(p)
    assert tables.columns.shape[1] == (p > 0).sum(1).max()
    for row in range(5):
        found = law(tables, row, states)
        np.testing.assert_allclose(found, p[row], rtol=0, atol=4e-16 * states)


def test_a_fine_grid_of_u_gives_the_law() -> None:
    p = np.array([[0.5, 0.25, 0.125, 0.125], [0, 0.75, 0, 0.25], [0, 0, 1, 0]])
    tables = alias_table(p)
    grid = (np.arange(4096) + 0.5) / 4096
    for row in range(3):
        drawn = np.bincount([alias_sample(*tables, row, u) for u in grid], minlength=4) / 4096
        np.testing.assert_array_equal(drawn, p[row])


def test_impossible_outcomes_are_never_drawn() -> None:
    p = np.array([[0.2, 0, 0.8, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2], [0, 0, 0, 0, 1.0]])
    tables = alias_table(p)
    edges = [k / 5 + d for k in range(6) for d in (-1e-16, 0, 1e-16)]
    edges += [0.0, 5e-324, np.nextafter(1.0, 0.0), *uniforms(np.uint64(key(3, 0)), 500)]
    for row in range(3):
        for u in edges:
            if 0 <= u < 1:
                assert p[row, alias_sample(*tables, row, u)] > 0


def test_python_and_compiled_draws_agree() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(7), size=(3, 2))
    tables = alias_table(p)
    assert tables.columns.shape == (6, 7, 2)  # the row of (s, a) is s * A + a
    for i, u in enumerate(uniforms(np.uint64(key(1, 0)), 300)):
        assert alias_sample(*tables, i % 6, u) == alias_sample.py_func(*tables, i % 6, u)
    np.testing.assert_allclose(law(tables, 2 * 2 + 1, 7), p[2, 1], atol=1e-15)


def test_rows_that_are_no_law_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"guide: p\[1\] sums to 0.9"):
        alias_table([[0.5, 0.5], [0.4, 0.5]])
    with pytest.raises(ConfigError, match="guide: p"):
        alias_table([[1.5, -0.5]])


def test_outcomes_of_many_states_survive_their_coding() -> None:
    states = 70_000
    p = np.zeros((2, states))
    p[0, [3, states - 1]] = 0.25, 0.75
    p[1, [states - 2, states - 1]] = 0.5
    tables = alias_table(p)
    for u in uniforms(np.uint64(key(0, 0)), 200):
        assert alias_sample(*tables, 0, u) in (3, states - 1)
        assert alias_sample(*tables, 1, u) in (states - 2, states - 1)
