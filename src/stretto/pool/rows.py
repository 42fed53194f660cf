"""Handles of rows in a column store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from stretto.data.arrays import Bools, Ints


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of a column store, as everybody outside it knows them. ``index`` [n]: where they are; ``generation`` [n]:
    how many rows had been released from there before. An index is used again, the two together never are."""

    index: Ints
    generation: Ints

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64))

    @classmethod
    def join(cls, parts: Sequence[Rows]) -> Self:
        """All rows of ``parts``, in order."""
        if not parts:
            return cls.none()
        return cls(np.concatenate([p.index for p in parts]), np.concatenate([p.generation for p in parts]))

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, which: slice | Ints | Bools | Sequence[int]) -> Rows:
        return Rows(self.index[which], self.generation[which])

    def ids(self) -> list[tuple[int, int]]:
        """(index, generation) of each: what tells it from every other row there ever was."""
        return list(zip(self.index.tolist(), self.generation.tolist(), strict=True))
