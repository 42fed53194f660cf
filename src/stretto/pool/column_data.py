"""The data plane of a column store: one column's entries, where they lie and how they are copied.

A column with one entry per row is one array. In a column with rows of different lengths, the entries of many rows lie
one after another in a few large chunks, so that putting and getting them is a handful of copies; a chunk is used again
when none of its rows is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.data.arrays import Array, Ints
from stretto.data.ragged import Ragged
from stretto.data.schema import Field
from stretto.kernel.errors import InvariantError

Cells = Array | Ragged
"""What is put into one column for some rows: [n, ...] where it has one entry per row, else ``Ragged``."""
_FIRST_BYTES = 1 << 16
_MOST_BYTES = 1 << 24
"""Chunks grow from one to the other, twofold; a larger put gets a chunk of its own."""
_RUN_BYTES = 512
"""Rows that lie one after another are copied at once; runs that are shorter than this on average, entry by entry."""


@dataclass(slots=True)
class _Chunk:
    """``entries`` of a column, of which ``used`` are taken, by ``rows`` rows that are still there."""

    entries: Array
    used: int = 0
    rows: int = 0


class RowColumn:
    """One entry per row, by row index."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self._entries: Array | None = None
        self._capacity = 0

    @property
    def nbytes(self) -> int:
        """All that it takes, free rows included."""
        return 0 if self._entries is None else self._entries.nbytes

    def grow(self, capacity: int) -> None:
        """Room for so many row indices."""
        self._capacity = capacity
        if self._entries is not None:
            more = np.empty((capacity - len(self._entries), *self.field.shape), self._entries.dtype)
            self._entries = np.concatenate([self._entries, more])

    def checked(self, given: Cells, rows: int) -> Array:
        """What is to be put for ``rows`` rows. Raises ``InvariantError`` if it isn't as the field says, or of another
        dtype than what is there."""
        if isinstance(given, Ragged):
            raise InvariantError(f"column {self.field.name!r} has one entry per row: put an array")
        self.field.check(given, rows)
        if self._entries is not None:
            _check_dtype(self.field, given, self._entries.dtype)
        return given

    def write(self, index: Ints, given: Cells) -> int:
        """The entries [n, ...] of the rows ``index`` [n], as ``checked``; returns their bytes."""
        assert not isinstance(given, Ragged)
        if self._entries is None:
            self._entries = np.empty((self._capacity, *self.field.shape), given.dtype)
        self._entries[index] = given
        return given.nbytes

    def read(self, index: Ints) -> Ragged:
        """A copy of the entries of the rows ``index`` [n], one a row."""
        entries = np.empty((0, *self.field.shape)) if self._entries is None else self._entries[index]
        return Ragged(entries, np.ones(len(entries), np.int64))

    def free(self, index: Ints) -> None:
        """Nothing to do: others will be written over them."""


class StepColumn:
    """As many entries as each row likes, by row index."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self._dtype: np.dtype[np.generic] | None = None
        self._chunks: dict[int, _Chunk] = {}
        self._open = -1
        self._spare: Array | None = None
        self._made = 0
        self._chunk, self._start, self._length = (np.empty(0, np.int64) for _ in range(3))

    @property
    def nbytes(self) -> int:
        """All that its chunks take, and one that is kept for the next."""
        spare = 0 if self._spare is None else self._spare.nbytes
        return spare + sum(chunk.entries.nbytes for chunk in self._chunks.values())

    def grow(self, capacity: int) -> None:
        """Room for so many row indices."""
        more = np.full(capacity - len(self._chunk), -1, np.int64)
        self._chunk, self._start, self._length = (
            np.concatenate([known, more]) for known in (self._chunk, self._start, self._length)
        )

    def checked(self, given: Cells, rows: int) -> Ragged:
        """What is to be put for ``rows`` rows. Raises ``InvariantError`` if it isn't as the field says, or of another
        dtype than what is there."""
        if not isinstance(given, Ragged):
            raise InvariantError(
                f"column {self.field.name!r} has rows of different lengths: put Ragged(values, lengths)"
            )
        if len(given) != rows:
            raise InvariantError(f"column {self.field.name!r}: {len(given)} rows are put for {rows}")
        self.field.check(given.values, len(given.values))
        if self._dtype is not None:
            _check_dtype(self.field, given.values, self._dtype)
        return given

    def write(self, index: Ints, given: Cells) -> int:
        """The entries of the rows ``index`` [n], which have none, as ``checked``; returns their bytes."""
        assert isinstance(given, Ragged)
        self._dtype = given.values.dtype
        total = len(given.values)
        number, chunk = self._room(total)
        begin = chunk.used
        chunk.entries[begin : begin + total] = given.values
        chunk.used += total
        chunk.rows += len(index)
        self._chunk[index] = number
        self._start[index] = begin + given.ends - given.lengths
        self._length[index] = given.lengths
        return given.nbytes

    def _room(self, entries: int) -> tuple[int, _Chunk]:
        """A chunk with so many free entries at its end."""
        opened = self._chunks.get(self._open)
        if opened is not None and opened.used + entries <= len(opened.entries):
            return self._open, opened
        usual_bytes = _FIRST_BYTES if opened is None else min(2 * opened.entries.nbytes, _MOST_BYTES)
        if opened is not None and opened.rows == 0:  # it was kept for what comes next, which is too large for it
            del self._chunks[self._open]
        memory, self._spare = self._spare, None
        if memory is None or len(memory) < entries:
            one = np.empty((1, *self.field.shape), self._dtype)
            memory = np.empty((max(entries, usual_bytes // max(one.nbytes, 1)), *self.field.shape), self._dtype)
        self._made += 1
        self._open = self._made
        self._chunks[self._open] = chunk = _Chunk(memory)
        return self._open, chunk

    def read(self, index: Ints) -> Ragged:
        """A copy of the entries of the rows ``index`` [n], in this order."""
        chunk, start, length = self._chunk[index], self._start[index], self._length[index]
        ends = start + length
        joined = (chunk[1:] == chunk[:-1]) & (start[1:] == ends[:-1])
        if len(index) and joined.all():
            return Ragged(self._chunks[int(chunk[0])].entries[start[0] : ends[-1]].copy(), length)
        out = np.empty((int(length.sum()), *self.field.shape), np.int8 if self._dtype is None else self._dtype)
        begins = np.cumsum(length) - length
        runs = np.flatnonzero(np.concatenate([[True], ~joined])[: len(index)])
        if out.nbytes >= _RUN_BYTES * len(runs):
            lengths = np.add.reduceat(length, runs) if len(runs) else length
            for number, at, to, count in zip(
                chunk[runs].tolist(), start[runs].tolist(), begins[runs].tolist(), lengths.tolist(), strict=True
            ):
                out[to : to + count] = self._chunks[number].entries[at : at + count]
        else:
            for number in np.unique(chunk).tolist():
                here = chunk == number
                many = length[here]
                within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
                taken = self._chunks[number].entries[np.repeat(start[here], many) + within]
                out[np.repeat(begins[here], many) + within] = taken
        return Ragged(out, length)

    def free(self, index: Ints) -> None:
        """Forget the entries of the rows ``index``, those that have any."""
        index = index[self._chunk[index] >= 0]
        numbers, rows = np.unique(self._chunk[index], return_counts=True)
        self._chunk[index] = -1
        for number, count in zip(numbers.tolist(), rows.tolist(), strict=True):
            chunk = self._chunks[number]
            chunk.rows -= count
            if chunk.rows:
                continue
            if number == self._open:
                chunk.used = 0
            else:
                self._spare = chunk.entries
                del self._chunks[number]


def _check_dtype(field: Field, given: Array, there: np.dtype[np.generic]) -> None:
    if given.dtype != there:
        raise InvariantError(f"column {field.name!r} holds {there}, and {given.dtype} is put")
