"""A stage's place at a column store: it waits until rows have what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stretto.data.ragged import Ragged
from stretto.pool.column_store import FIRST_COME, ColumnStore
from stretto.pool.rows import Rows
from stretto.pool.samplers import Sampler


class Consumer:
    """``task`` takes ``columns`` of ``store``, ``count`` rows at a time, on the clock of any asyncio loop."""

    def __init__(
        self, store: ColumnStore, task: str, columns: Sequence[str], count: int, sampler: Sampler = FIRST_COME
    ) -> None:
        self.store, self.task, self.columns, self.count, self.sampler = store, task, tuple(columns), count, sampler
        self._put = asyncio.Event()
        store.subscribe(self._told)

    def _told(self, rows: Rows, columns: Sequence[str]) -> None:
        if not self._put.is_set() and not set(self.columns).isdisjoint(columns):
            self._put.set()

    async def rows(self, partition: str | None = None) -> Rows:
        """The next batch, consumed; waits while there isn't enough."""
        while True:
            rows = self.store.request(self.task, self.columns, self.count, sampler=self.sampler, partition=partition)
            if len(rows):
                return rows
            self._put.clear()
            await self._put.wait()

    async def batch(self, partition: str | None = None) -> tuple[Rows, dict[str, Ragged]]:
        """The next batch and its columns."""
        rows = await self.rows(partition)
        return rows, self.store.get(rows, self.columns)
