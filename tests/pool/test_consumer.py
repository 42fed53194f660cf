"""Stages that wait for columns, on the virtual clock."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from stretto.data.schema import Field
from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import DeadlockError
from stretto.pool.column_store import ColumnStore
from stretto.pool.consumer import Consumer

FIELDS = (Field("a", np.int64, per="row"), Field("b", np.int64, per="row"))


def test_a_stage_gets_its_rows_at_the_moment_when_the_last_column_is_put() -> None:
    async def main() -> list[tuple[float, list[int]]]:
        store, loop, served = ColumnStore(FIELDS), asyncio.get_running_loop(), []
        consumer = Consumer(store, "update", ["a", "b"], 2)

        async def produce() -> None:
            rows = store.add(4)
            store.put(rows, {"a": np.arange(4)})
            for k in range(4):
                await asyncio.sleep(1)
                store.put(rows[[k]], {"b": np.array([10 * k])})

        task = asyncio.ensure_future(produce())
        for _ in range(2):
            _, cells = await consumer.batch()
            served.append((loop.time(), cells["b"].values.tolist()))
        await task
        return served

    assert run_virtual(main(), VirtualLoop()) == [(2.0, [0, 10]), (4.0, [20, 30])]


def test_two_consumers_of_one_task_share_its_rows() -> None:
    async def main() -> list[list[int]]:
        store = ColumnStore(FIELDS)
        consumers = [Consumer(store, "reward", ["a"], 2) for _ in range(2)]
        waiting = [asyncio.ensure_future(consumer.rows()) for consumer in consumers]
        await asyncio.sleep(1)
        store.put(store.add(4), {"a": np.arange(4)})
        return [(await each).index.tolist() for each in waiting]

    assert sorted(itertools.chain(*run_virtual(main(), VirtualLoop()))) == [0, 1, 2, 3]


def test_a_stage_that_nobody_feeds_is_found_at_once() -> None:
    async def main() -> None:
        await Consumer(ColumnStore(FIELDS), "update", ["a"], 1).rows()

    with pytest.raises(DeadlockError):
        run_virtual(main(), VirtualLoop())
