"""Drills of the column store: seeded schedules of puts, requests and clears, each answer held against a ledger."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from stretto.data.arrays import Ints
from stretto.data.ragged import Ragged
from stretto.data.schema import Field
from stretto.kernel.errors import InvariantError
from stretto.pool.column_data import Cells
from stretto.pool.column_store import FIRST_COME, ColumnStore
from stretto.pool.rows import Rows
from stretto.pool.samplers import GroupComplete, LengthBalanced, Sampler

GROUP, RANKS, ROWS, PARTITIONS = 4, 2, 16, 4
"""Rows of a group, ranks of the update, rows of a partition, partitions one after the other."""
FIELDS = (Field("response", np.int64), Field("ref_logp", np.int64), Field("reward", np.int64, per="row"))
TASKS: dict[str, tuple[Sequence[str], Sampler, int]] = {
    "reference": (("response",), FIRST_COME, 2),
    "reward": (("response", "ref_logp"), GroupComplete(GROUP), GROUP),
    "update": (("response", "ref_logp", "reward"), LengthBalanced(GROUP, RANKS), ROWS // RANKS),
}
"""What each task needs, how it samples, and how many rows a rank asks for."""
EARLY = "rows served before all columns were there"
ONCE = "rows served twice to a task, or never"
VALUES = "batches with other values than were put"
PART = "groups served in part"
RANKS_SHARE = "batches whose ranks share rows, or leave some out"
AGAIN = "other answers to the same rank and batch"
LATE = "late writes taken, or not counted"
BYTES = "schedules that move other bytes than those asked for"
OTHERWISE = "schedules that the store itself ends"
PROMISES = (EARLY, ONCE, VALUES, PART, RANKS_SHARE, AGAIN, LATE, BYTES, OTHERWISE)


def drill(seed: int) -> Counter[str]:
    """How often one schedule broke each of ``PROMISES``: the rows of some partitions, one after the other, column by
    column in random order, while three tasks ask; slow writers still write to each partition that is cleared."""
    return _Drill(seed).run()


class _Drill:
    """One schedule. A row's values tell its sample and column, so that nobody else's can pass for them."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.store = ColumnStore(FIELDS)
        self.broken: Counter[str] = Counter(dict.fromkeys(PROMISES, 0))
        self.lengths = self.random.integers(0, 6, PARTITIONS * ROWS)
        self.sample_of: dict[tuple[int, int], int] = {}
        self.there: dict[int, set[str]] = {}
        self.answers: dict[int, list[list[tuple[int, int]]]] = {}
        self.bytes = self.late = 0

    def run(self) -> Counter[str]:
        """All partitions; what the store itself refuses is counted, too."""
        try:
            for partition in range(PARTITIONS):
                self._partition(partition)
        except InvariantError:
            self.broken[OTHERWISE] += 1
        self.broken[LATE] += abs(self.store.late_rows - self.late)
        self.broken[BYTES] += int(self.store.bytes_got != self.bytes)
        self.broken[OTHERWISE] += len(self.store)
        return self.broken

    def _partition(self, partition: int) -> None:
        """Its rows from the first put to the last request, and those who write too late."""
        samples = np.arange(ROWS) + partition * ROWS
        rows = self.store.add(ROWS, f"{partition}", samples // GROUP, tokens=self.lengths[samples])
        self.sample_of |= dict(zip(rows.ids(), samples.tolist(), strict=True))
        cells = [(field.name, first) for field in FIELDS for first in range(0, ROWS, 2)]
        served: dict[str, list[int]] = {task: [] for task in TASKS}
        for at in self.random.permutation(len(cells)).tolist():
            column, first = cells[at]
            two = slice(first, first + 2)
            for sample in samples[two].tolist():
                self.there.setdefault(sample, set()).add(column)
            self.store.put(rows[two], {column: self._values(column, samples[two])})
            for task in self.random.permutation(list(TASKS)).tolist():
                served[task] += self._ask(task, partition)
        for task, got in served.items():
            while more := self._ask(task, partition):
                got += more
                if len(got) > 2 * ROWS:  # it is served for ever
                    break
            once = set(got)
            self.broken[ONCE] += len(got) - len(once) + ROWS - len(once)
        self.store.clear(f"{partition}")
        self._write_late(rows)

    def _write_late(self, rows: Rows) -> None:
        """Slow writers, after the partition is gone and others have some of its indices."""
        others = self.store.add(2, "others")
        before = self.store.bytes_put
        for field in FIELDS:
            late = rows[self.random.permutation(ROWS)[:3]]
            self.late += len(late)
            self.store.put(late, {field.name: self._values(field.name, np.arange(3))})
        self.broken[LATE] += int(self.store.bytes_put != before)
        self.store.release(others)

    def _values(self, column: str, samples: Ints) -> Cells:
        value = 10 * samples + [field.name for field in FIELDS].index(column)
        lengths = self.lengths[samples]
        return value if column == "reward" else Ragged(np.repeat(value, lengths), lengths)

    def _ask(self, task: str, partition: int) -> list[int]:
        """A request of each rank of ``task``; the samples that they are served now."""
        columns, sampler, count = TASKS[task]
        if sampler.ranks == 1:
            return self._look(task, self.store.request(task, columns, count, sampler=sampler))
        shares = [
            self.store.request(task, columns, count, rank, partition, sampler=sampler, partition=f"{partition}")
            for rank in self.random.permutation(sampler.ranks).tolist()
        ]
        ids = sorted(share.ids() for share in shares)
        if partition in self.answers:
            self.broken[AGAIN] += int(ids != self.answers[partition])
            return []
        if not len(shares[0]):
            return []
        self.answers[partition] = ids
        everything = list(itertools.chain(*ids))
        self.broken[RANKS_SHARE] += int(not len(everything) == len(set(everything)) == ROWS)
        return list(itertools.chain(*(self._look(task, share) for share in shares)))

    def _look(self, task: str, rows: Rows) -> list[int]:
        """Get what was served, and compare it with what was put."""
        columns, sampler, _ = TASKS[task]
        samples = [self.sample_of[row] for row in rows.ids()]
        self.broken[EARLY] += sum(not set(columns) <= self.there.get(sample, set()) for sample in samples)
        if sampler is not FIRST_COME:
            self.broken[PART] += sum(n != GROUP for n in Counter(sample // GROUP for sample in samples).values())
        cells = self.store.get(rows, columns)
        self.bytes += sum(8 * (len(rows) if name == "reward" else int(self.lengths[samples].sum())) for name in columns)
        for column, found in cells.items():
            right = self._values(column, np.array(samples, np.int64))
            values = right.values if isinstance(right, Ragged) else right
            self.broken[VALUES] += int(not np.array_equal(found.values, values))
        return samples
