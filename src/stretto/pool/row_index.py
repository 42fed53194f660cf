"""The control plane of a column store: what is known of its rows, and nothing of what they hold.

For each row: which columns were produced, which tasks have consumed it, its group, partition and metadata, and how
often its index was released before. AsyncFlow (arXiv 2507.01663), as its queue's code has it:

    ready(task, columns) = rows with all of ``columns`` produced that the task hasn't consumed
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stretto.data.arrays import Array, Bools, Ints
from stretto.kernel.errors import InvariantError, did_you_mean
from stretto.pool.rows import Rows
from stretto.pool.samplers import Ready, Sampler

_FIRST_ROWS = 256
_Batch = tuple[str, str | None, int, int]
"""Task, partition, rank, batch index."""


class RowIndex:
    """Rows of a store with these ``columns``."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = {name: k for k, name in enumerate(columns)}
        self.capacity = 0
        """Indices that there are, free ones included."""
        self._free: list[int] = []
        self._added = 0
        self._partitions: dict[str, int] = {}
        self._named = 0
        self._generation, self._arrival = np.empty(0, np.int64), np.empty(0, np.int64)
        self._group, self._partition = np.empty(0, np.int64), np.empty(0, np.int64)
        self._produced = np.empty((len(self._columns), 0), np.bool_)
        self._consumed: dict[str, Bools] = {}
        self._metadata: dict[str, Ints] = {}
        self._answers: dict[_Batch, Rows] = {}
        self._answered: dict[tuple[str, str | None, int], int] = {}

    def __len__(self) -> int:
        """Rows that are there."""
        return self.capacity - len(self._free)

    def add(self, count: int, partition: str, group: Ints | None = None) -> Rows:
        """``count`` new rows, of which nothing is produced yet; ``group`` [count]."""
        while len(self._free) < count:
            self._grow()
        index = np.array([self._free.pop() for _ in range(count)], np.int64)
        self._arrival[index] = np.arange(self._added, self._added + count)
        self._added += count
        if partition not in self._partitions:
            self._partitions[partition] = self._named
            self._named += 1
        self._partition[index] = self._partitions[partition]
        self._group[index] = -1 if group is None else group
        return Rows(index, self._generation[index])

    def _grow(self) -> None:
        """Twice as many indices."""
        old, new = self.capacity, max(_FIRST_ROWS, self.capacity)
        self.capacity = old + new

        def more(known: Array, fill: int) -> Array:
            return np.concatenate([known, np.full((*known.shape[:-1], new), fill, known.dtype)], -1)

        self._generation, self._arrival = more(self._generation, 0), more(self._arrival, 0)
        self._group, self._partition = more(self._group, -1), more(self._partition, -1)
        self._produced = more(self._produced, 0)
        self._consumed = {task: more(consumed, 0) for task, consumed in self._consumed.items()}
        self._metadata = {name: more(values, 0) for name, values in self._metadata.items()}
        self._free = [*range(self.capacity - 1, old - 1, -1), *self._free]

    def live(self, rows: Rows) -> Bools:
        """Which of ``rows`` are still there: their index wasn't released since they were added. [n]"""
        return np.asarray(self._generation[rows.index] == rows.generation)

    def check_live(self, rows: Rows, what: str) -> None:
        """Raise ``InvariantError`` that says ``what`` was asked of rows that are gone, if any is."""
        if not (live := self.live(rows)).all():
            gone = rows[~live].ids()[:3]
            raise InvariantError(
                f"{what}: {np.count_nonzero(~live)} of {len(rows)} rows were released before, the first of them "
                f"(index, generation) {gone}. Release rows, and clear a partition, when nobody needs them any more"
            )

    def columns(self, names: Sequence[str]) -> Ints:
        """The numbers of these columns. Raises ``InvariantError`` for one that there isn't."""
        for name in names:
            if name not in self._columns:
                raise InvariantError(f"no column {name!r}; {did_you_mean(name, self._columns)}")
        return np.array([self._columns[name] for name in names], np.int64)

    def produce(self, rows: Rows, names: Sequence[str]) -> None:
        """These cells hold something from now on. Raises ``InvariantError`` if one did: a cell is put once, which is
        why puts on different cells can come in any order."""
        _check_distinct(rows, "put")
        cells = np.ix_(self.columns(names), rows.index)
        if (twice := self._produced[cells]).any():
            column, row = (int(k[0]) for k in np.nonzero(twice))
            raise InvariantError(f"column {names[column]!r} of row {rows.ids()[row]} was put twice")
        self._produced[cells] = True

    def check_produced(self, rows: Rows, names: Sequence[str]) -> None:
        """Raise ``InvariantError`` that names the first of these cells that holds nothing, if there is one."""
        missing = ~self._produced[np.ix_(self.columns(names), rows.index)]
        if missing.any():
            column, row = (int(k[0]) for k in np.nonzero(missing))
            raise InvariantError(
                f"column {names[column]!r} of row {rows.ids()[row]} isn't there yet: request() the columns that you get"
            )

    def annotate(self, rows: Rows, name: str, values: Ints) -> None:
        """Metadata of these rows, [n]; 0 for a row that got none."""
        if name not in self._metadata:
            self._metadata[name] = np.zeros(self.capacity, np.int64)
        self._metadata[name][rows.index] = values

    def ready(self, task: str, names: Sequence[str], partition: str | None = None) -> Ready:
        """What ``task`` may have now: rows with all these columns that it hasn't consumed, in order of arrival. Of one
        partition, or of all (None)."""
        ready = self._produced[self.columns(names)].all(0) & (self._partition >= 0)
        if task in self._consumed:
            ready &= ~self._consumed[task]
        if partition is not None:
            ready &= self._partition == self._partitions.get(partition, -1)
        index = np.flatnonzero(ready)
        index = index[np.argsort(self._arrival[index])]
        return Ready(index, self._group[index], {name: values[index] for name, values in self._metadata.items()})

    def request(
        self,
        task: str,
        names: Sequence[str],
        count: int,
        sampler: Sampler,
        partition: str | None,
        rank: int,
        batch_index: int | None,
    ) -> Rows:
        """A batch for ``task``, marked as consumed at once; none if there isn't enough. With a ``batch_index`` the
        answer is remembered, and whoever asks again as this rank gets the same. Raises ``InvariantError`` if the
        sampler breaks its promise, or if that batch is gone."""
        if batch_index is None:
            if sampler.ranks > 1:
                raise InvariantError(f"task {task!r}: a sampler for {sampler.ranks} ranks needs a batch_index")
            shares = self._choose(task, names, count, sampler, partition)
            return shares[0] if shares else Rows.none()
        if sampler.ranks > 1 and not 0 <= rank < sampler.ranks:
            raise InvariantError(f"task {task!r}: dp_rank = {rank} of a sampler for {sampler.ranks} ranks")
        known = self._answers.get((task, partition, rank, batch_index))
        if known is None:
            last = self._answered.get((task, partition, rank), -1)
            if batch_index <= last:
                raise InvariantError(
                    f"task {task!r}: batch {batch_index} of rank {rank} is gone; the last one answered is {last}. "
                    "Ranks of one replica group ask for a batch before its rows are released, and count up"
                )
            shares = self._choose(task, names, count, sampler, partition)
            if not shares:
                return Rows.none()
            for each, share in enumerate(shares, rank if sampler.ranks == 1 else 0):
                self._answers[task, partition, each, batch_index] = share
                self._answered[task, partition, each] = batch_index
            known = self._answers[task, partition, rank, batch_index]
        return known

    def _choose(
        self, task: str, names: Sequence[str], count: int, sampler: Sampler, partition: str | None
    ) -> list[Rows]:
        """What the sampler takes now, for each rank that it decides for; nothing if there isn't enough."""
        ready = self.ready(task, names, partition)
        found = sampler.sample(ready, count)
        if found is None:
            return []
        offered = np.zeros(self.capacity + 1, np.bool_)
        offered[ready.index] = True
        if not all(offered[taken].all() for taken in (*found.shares, found.consumed)):
            raise InvariantError(f"{type(sampler).__name__} took rows for task {task!r} that aren't ready for it")
        if task not in self._consumed:
            self._consumed[task] = np.zeros(self.capacity, np.bool_)
        self._consumed[task][found.consumed] = True
        return [Rows(share, self._generation[share]) for share in found.shares]

    def release(self, rows: Rows) -> None:
        """These rows are no more, and their indices free for others. Raises ``InvariantError`` if some are gone."""
        self.check_live(rows, "release")
        _check_distinct(rows, "release")
        index = rows.index
        self._generation[index] += 1
        self._partition[index] = -1
        self._produced[:, index] = False
        for known in (*self._consumed.values(), *self._metadata.values()):
            known[index] = 0
        self._free += index.tolist()
        self._answers = {batch: given for batch, given in self._answers.items() if self.live(given).all()}

    def rows_of(self, partition: str) -> Rows:
        """All rows of a partition, in order of arrival."""
        index = np.flatnonzero(self._partition == self._partitions.get(partition, -2))
        index = index[np.argsort(self._arrival[index])]
        return Rows(index, self._generation[index])

    def forget(self, partition: str) -> None:
        """A partition that has no rows any more: its name can be used for another one."""
        self._partitions.pop(partition, None)
        self._answered = {key: last for key, last in self._answered.items() if key[1] != partition}


def _check_distinct(rows: Rows, what: str) -> None:
    if len(np.unique(rows.index)) != len(rows):
        raise InvariantError(f"{what}: one row is there twice among {len(rows)}")
