"""Draws from rows of probabilities in constant time, with one uniform a draw: alias tables.

A row with at most K possible outcomes becomes K columns of mass 1/K. A column holds one or two outcomes: ``u`` picks
the column by its leading part and the outcome by the rest, so a draw costs one look-up whatever K is (A. J. Walker,
"An Efficient Method for Generating Discrete Random Variables with General Distributions", 1977; the tables by M. D.
Vose, "A Linear Algorithm for Generating Random Numbers with a Given Distribution", 1991). Impossible outcomes take
no column: a sparse chain of many states has small tables, and none of them is ever drawn. All that a draw needs lies in
one place of 16 bytes: where the tables outgrow the first cache, a draw waits once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import probabilities

_MOST_BITS = 26


class AliasTable(NamedTuple):
    """Alias tables of R rows, for ``alias_sample(*guide, row, u)``. ``columns`` [R, K, 2]: the share of a column that
    goes to its first outcome, and both outcomes in one number, first * 2^``bits`` + second (exact below 2^53)."""

    columns: Floats
    bits: int


def alias_table(p: ArrayLike) -> AliasTable:
    """Tables for rows of probabilities ``p`` [.., S]; the leading axes are flattened in C order, so that the row of
    (s, a) in [S, A, S] is ``s * A + a``. 16 K bytes a row, K the largest number of possible outcomes in any row.
    ``ConfigError`` if a row isn't a probability distribution."""
    rows = probabilities("guide", "p", p)
    rows = np.ascontiguousarray(rows.reshape(-1, rows.shape[-1]))
    cut, ends = _fill(rows, int(np.count_nonzero(rows, axis=1).max()))
    bits = rows.shape[1].bit_length()
    if bits > _MOST_BITS:
        raise ConfigError(f"guide: p has {rows.shape[1]} outcomes a row; at most {2**_MOST_BITS - 1} fit a table")
    return AliasTable(np.stack([cut, ends[..., 0] * 2.0**bits + ends[..., 1]], axis=-1), bits)


@overload
def inverse_cdf(law: Floats, u: float) -> int:
    """One outcome."""


@overload
def inverse_cdf(law: Floats, u: Sequence[float] | Floats) -> NDArray[np.intp]:
    """One for each."""


def inverse_cdf(law: Floats, u: ArrayLike) -> int | NDArray[np.intp]:
    """Outcomes of ``law`` [K] at ``u`` in [0, 1), a number or an array, by inverting its distribution: for a law that
    is drawn from once."""
    upto = np.cumsum(law)
    found: NDArray[np.intp] = np.searchsorted(upto / upto[-1], np.asarray(u), side="right")
    return int(found) if np.ndim(u) == 0 else found


@njit(cache=True, inline="always")
def alias_sample(columns: Floats, bits: int, row: int, u: float) -> int:
    """The outcome that ``u`` in [0, 1) picks from ``row``; runs in Python and in Numba kernels alike."""
    count = columns.shape[1]
    place = u * count
    k = min(int(place), count - 1)  # u * K can round up to K
    both = int(columns[row, k, 1])
    return both >> bits if place - k < columns[row, k, 0] else both & ((1 << bits) - 1)


@njit(cache=True)
def _fill(p: Floats, columns: int) -> tuple[Floats, NDArray[np.int32]]:
    """Vose's pairing of a column that is short of mass with one that has too much."""
    rows = p.shape[0]
    cut, ends = np.ones((rows, columns)), np.zeros((rows, columns, 2), np.int32)
    short, long = np.empty(columns, np.int64), np.empty(columns, np.int64)
    for row in range(rows):
        support = np.flatnonzero(p[row])
        mass = np.zeros(columns)  # columns beyond the support are empty, hence pure second outcome
        mass[: support.size] = p[row][support] * (columns / p[row].sum())
        shorts = longs = 0
        for k in range(columns):
            ends[row, k, :] = support[min(k, support.size - 1)]
            if mass[k] < 1:
                short[shorts] = k
                shorts += 1
            else:
                long[longs] = k
                longs += 1
        while shorts > 0 and longs > 0:
            shorts -= 1
            low, high = short[shorts], long[longs - 1]
            cut[row, low], ends[row, low, 1] = mass[low], ends[row, high, 0]
            mass[high] -= 1 - mass[low]
            if mass[high] < 1:
                longs -= 1
                short[shorts] = high
                shorts += 1
    return cut, ends
