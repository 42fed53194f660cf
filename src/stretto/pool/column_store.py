"""Samples as rows, what stages of a run make of them as columns: put cell by cell, served when all is there.

A stage puts the columns that it makes and asks for rows that have all the columns it needs; each task consumes for
itself. AsyncFlow (arXiv 2507.01663): a control plane that knows which cells exist (``RowIndex``), a data plane that
holds them (``column_data``), and only ids between them. Nothing is padded, and only what is asked for moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from stretto.data.arrays import Bools, Ints
from stretto.data.ragged import Ragged
from stretto.data.schema import Field
from stretto.pool.column_data import Cells, RowColumn, StepColumn
from stretto.pool.row_index import RowIndex
from stretto.pool.rows import Rows
from stretto.pool.samplers import Ready, Sampler, Sequential

OnPut = Callable[[Rows, Sequence[str]], None]
FIRST_COME = Sequential()


class ColumnStore:
    """Rows of the columns that ``fields`` describe (per step: as many entries as the row likes; per row: one)."""

    def __init__(self, fields: Sequence[Field]) -> None:
        self._data: dict[str, RowColumn | StepColumn] = {
            field.name: RowColumn(field) if field.per == "row" else StepColumn(field) for field in fields
        }
        self._index = RowIndex(list(self._data))
        self._on_put: list[OnPut] = []
        self.late_rows = 0
        """Rows of puts that came after their row was released, and were not written."""
        self.bytes_put = 0
        """Bytes of all entries ever written."""
        self.bytes_got = 0
        """Bytes of all entries ever handed out."""

    def __len__(self) -> int:
        """Rows that are there."""
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """All that its data takes."""
        return sum(data.nbytes for data in self._data.values())

    def subscribe(self, on_put: OnPut) -> None:
        """Tell ``on_put`` of each put: which rows, which columns, and nothing of what they hold."""
        self._on_put.append(on_put)

    def add(self, count: int, partition: str = "", group: Ints | None = None, **metadata: Ints) -> Rows:
        """``count`` new rows, in a partition that can be cleared at once. ``group`` [count]: rows of one number belong
        together; ``metadata``, [count] each: what samplers look at, such as ``tokens``."""
        before = self._index.capacity
        rows = self._index.add(count, partition, group)
        if self._index.capacity > before:
            for data in self._data.values():
                data.grow(self._index.capacity)
        self.annotate(rows, **metadata)
        return rows

    def annotate(self, rows: Rows, **metadata: Ints) -> None:
        """Metadata that is known only now, [n] each. Raises ``InvariantError`` if a row was released."""
        self._index.check_live(rows, "annotate")
        for name, values in metadata.items():
            self._index.annotate(rows, name, values)

    def put(self, rows: Rows, cells: Mapping[str, Cells]) -> int:
        """Write these columns of ``rows``; returns the number of rows written. Rows that were released meanwhile are
        left out and counted in ``late_rows``. Raises ``InvariantError`` if a column isn't as its field says, or a cell
        is there already; nothing is written then."""
        names = list(cells)
        self._index.columns(names)
        live = self._index.live(rows)
        late = len(rows) - int(np.count_nonzero(live))
        given = {name: self._data[name].checked(values, len(rows)) for name, values in cells.items()}
        if late:
            rows = rows[live]
            given = {name: _where(values, live) for name, values in given.items()}
        self._index.produce(rows, names)
        self.late_rows += late
        for name, values in given.items():
            self.bytes_put += self._data[name].write(rows.index, values)
        if len(rows):
            for on_put in self._on_put:
                on_put(rows, names)
        return len(rows)

    def ready(self, task: str, columns: Sequence[str], partition: str | None = None) -> Ready:
        """What ``task`` may have now, in order of arrival: rows with all these columns that it hasn't consumed."""
        return self._index.ready(task, columns, partition)

    def request(
        self,
        task: str,
        columns: Sequence[str],
        count: int,
        dp_rank: int = 0,
        batch_index: int | None = None,
        *,
        sampler: Sampler = FIRST_COME,
        partition: str | None = None,
    ) -> Rows:
        """``count`` rows that have all these ``columns``, of one partition or of any (None), or no rows while there
        are too few. What the sampler consumes ``task`` never gets again. With a ``batch_index`` the answer is
        remembered: the first rank of a replica group decides, and all who ask as ``dp_rank`` get the same rows."""
        return self._index.request(task, columns, count, sampler, partition, dp_rank, batch_index)

    def get(self, rows: Rows, columns: Sequence[str]) -> dict[str, Ragged]:
        """Copies of these columns alone, rows in this order (a field per row has one entry each). Raises
        ``InvariantError`` if a row was released, or a cell isn't there yet."""
        self._index.check_live(rows, "get")
        self._index.check_produced(rows, columns)
        found = {name: self._data[name].read(rows.index) for name in columns}
        self.bytes_got += sum(cells.nbytes for cells in found.values())
        return found

    def release(self, rows: Rows) -> None:
        """Nobody needs these rows any more. Raises ``InvariantError`` if one was released before."""
        self._index.release(rows)
        for data in self._data.values():
            data.free(rows.index)

    def clear(self, partition: str = "") -> int:
        """Release all rows of a partition; returns how many there were. Its name may be used again: what somebody still
        writes to the rows of before is late."""
        rows = self._index.rows_of(partition)
        self.release(rows)
        self._index.forget(partition)
        return len(rows)


def _where(cells: Cells, kept: Bools) -> Cells:
    """Only the rows that ``kept`` [n] is true for."""
    return cells.where(kept) if isinstance(cells, Ragged) else cells[kept]
