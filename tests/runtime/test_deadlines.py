"""Deadlines of equal length share one timer."""

from __future__ import annotations

import asyncio

import pytest

from stretto.errors import DeadlockError
from stretto.runtime.clock import VirtualLoop, run_virtual
from stretto.runtime.deadlines import Deadlines


def test_each_is_late_at_its_own_time_and_those_that_left_never() -> None:
    async def main() -> list[tuple[float, str]]:
        loop, late = asyncio.get_running_loop(), []
        deadlines: Deadlines[str] = Deadlines(loop, 10.0, lambda item: late.append((loop.time(), item)))
        gone = deadlines.add("leaves first")
        await asyncio.sleep(1)
        deadlines.add("a")
        also = deadlines.add("leaves too")
        await asyncio.sleep(2)
        deadlines.add("b")
        deadlines.drop(gone)
        deadlines.drop(also)
        await asyncio.sleep(20)
        deadlines.drop(also)  # once more: nothing happens
        deadlines.add("c")
        await asyncio.sleep(20)
        return late

    assert run_virtual(main(), VirtualLoop()) == [(11.0, "a"), (13.0, "b"), (33.0, "c")]


def test_an_item_may_be_added_while_another_is_late() -> None:
    async def main() -> list[float]:
        loop, late = asyncio.get_running_loop(), []

        def again(item: int) -> None:
            late.append(loop.time())
            if item:
                deadlines.add(item - 1)

        deadlines = Deadlines(loop, 5.0, again)
        deadlines.add(2)
        await asyncio.sleep(100)
        return late

    assert run_virtual(main(), VirtualLoop()) == [5.0, 10.0, 15.0]


def test_nothing_is_scheduled_once_all_have_left() -> None:
    """So that a stuck run is found at once, not at a deadline of what has long ended."""

    async def main() -> None:
        deadlines: Deadlines[str] = Deadlines(asyncio.get_running_loop(), 3600.0, print)
        deadlines.drop(deadlines.add("in time"))
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"at t = 0\.000 s"):
        run_virtual(main(), VirtualLoop())
