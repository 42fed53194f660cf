"""Rows of different lengths in one flat array, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from stretto.data.arrays import Array, Bools, Ints
from stretto.kernel.errors import InvariantError


@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """``values`` [sum(lengths), ...], row after row, and ``lengths`` [n], entries of each. Raises ``InvariantError`` if
    they don't fit each other."""

    values: Array
    lengths: Ints

    def __post_init__(self) -> None:
        if self.lengths.ndim != 1 or (len(self.lengths) and self.lengths.min() < 0):
            raise InvariantError("lengths of ragged rows: expected one number of at least 0 for each row")
        if self.lengths.sum() != len(self.values):
            raise InvariantError(f"ragged rows: {len(self.values)} values for {self.lengths.sum()} entries in all rows")

    @classmethod
    def of(cls, rows: Sequence[Array]) -> Self:
        """These rows, each [length, ...]; at least one."""
        return cls(np.concatenate(rows), np.array([len(row) for row in rows], np.int64))

    @classmethod
    def of_matrix(cls, rows: Array) -> Self:
        """Rows of one length, [n, length, ...]; a view if they lie one after another."""
        count, length = rows.shape[:2]
        return cls(rows.reshape(count * length, *rows.shape[2:]), np.full(count, length, np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def nbytes(self) -> int:
        """Of the values."""
        return self.values.nbytes

    @property
    def ends(self) -> Ints:
        """Where each row ends in ``values``, [n]."""
        return np.cumsum(self.lengths)

    def rows(self) -> list[Array]:
        """Each row, as a view."""
        return np.split(self.values, self.ends[:-1]) if len(self) else []

    def where(self, kept: Bools) -> Ragged:
        """Only the rows that ``kept`` [n] is true for."""
        return Ragged(self.values[np.repeat(kept, self.lengths)], self.lengths[kept])
