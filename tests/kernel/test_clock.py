"""The virtual loop keeps asyncio's promises."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import Callable

import pytest

from stretto.kernel.clock import Sleep, VirtualLoop, run_virtual
from stretto.kernel.errors import DeadlineError, DeadlockError
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits


def test_it_jumps_instead_of_waiting() -> None:
    async def main() -> float:
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time()

    assert run_virtual(main(), VirtualLoop()) == 86_400  # a day; the test would run into its timeout


def test_timers_run_in_order_of_time_then_of_setting() -> None:
    async def main() -> list[str]:
        loop, order = asyncio.get_running_loop(), []
        loop.call_later(2, order.append, "c")
        loop.call_later(1, order.append, "a")
        loop.call_later(1, order.append, "b")
        loop.call_later(1, order.append, "never").cancel()
        gone = loop.call_later(3, order.append, "never")
        loop.call_later(2.5, gone.cancel)
        await asyncio.sleep(4)
        return order

    assert run_virtual(main(), VirtualLoop()) == ["a", "b", "c"]


def test_a_cancelled_timer_holds_on_to_nothing() -> None:
    class Heavy:
        pass

    async def main() -> bool:
        loop, heavy = asyncio.get_running_loop(), Heavy()
        gone = weakref.ref(heavy)
        loop.call_later(1e6, id, heavy).cancel()
        del heavy
        return gone() is None

    assert run_virtual(main(), VirtualLoop())


def test_a_timer_can_be_cancelled_by_an_earlier_one_of_its_instant() -> None:
    async def main() -> list[str]:
        loop, order = asyncio.get_running_loop(), []
        handles = []
        loop.call_later(1, lambda: handles[0].cancel())
        handles.append(loop.call_later(1, order.append, "never"))
        await asyncio.sleep(2)
        handles[0].cancel()
        return order

    assert run_virtual(main(), VirtualLoop()) == []


def test_a_pause_ends_in_time_and_can_be_cancelled_before_while_and_after_it_runs() -> None:
    async def nap(seconds: float, said: list[float]) -> None:
        loop = asyncio.get_running_loop()
        await Sleep(loop, seconds)
        said.append(loop.time())

    async def main() -> list[float]:
        loop, said = asyncio.get_running_loop(), []
        tasks = [loop.create_task(nap(seconds, said)) for seconds in (3.0, 1.0, 2.0, 5.0, 1.0)]
        tasks[4].cancel()  # before its first step
        loop.call_later(0.5, tasks[2].cancel)
        loop.call_later(3.0, tasks[0].cancel)  # set before the pause was: cancelled in the instant in which it ends
        await asyncio.wait(tasks)
        assert [t.cancelled() for t in tasks] == [True, False, True, False, True]
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await Sleep(loop, 1e9)
        return [*said, loop.time()]

    assert run_virtual(main(), VirtualLoop()) == [1.0, 5.0, 6.0]


def test_pauses_leave_nothing_to_the_collector() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        gc.collect()
        for _ in range(100):
            await Sleep(loop, 1.0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await Sleep(loop, 1.0)
        return sum(type(found) is Sleep for found in gc.get_objects())  # isinstance would wake dead weak proxies

    assert run_virtual(main(), VirtualLoop()) <= 2


def test_a_pause_works_on_the_wall_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = loop.time()
        await Sleep(loop, 0.02)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await Sleep(loop, 60)
        return loop.time() - start

    assert asyncio.run(main()) >= 0.04


def test_timeouts_work_and_name_the_wait() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        log = EventLog(None, loop.time)
        heard: list[dict[str, object]] = []
        log.hear(recording=[heard.append])
        waits = Waits(log, warn_s=3)
        with pytest.raises(DeadlineError, match=r"the cook waited 10 s for water; deadlines.tea_s is over"):
            await waits.wait_with_deadline(loop.create_future(), "the cook", "water", 10, "tea_s")
        assert loop.time() == 10
        assert [(e["e"], e["t"], e["owner"], e["what"]) for e in heard] == [("Waiting", 3, "the cook", "water")]

    run_virtual(main(), VirtualLoop())


def test_a_wait_that_ends_in_time_leaves_nothing_behind() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        waits = Waits(EventLog(None, loop.time), warn_s=3)
        assert await waits.wait_with_deadline(asyncio.sleep(2, "done"), "a", "b", 10, "s") == "done"
        assert waits.describe() == "Nobody else waits."

    run_virtual(main(), VirtualLoop())


def test_a_stuck_run_says_at_once_who_waits_for_what() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError, match=r"nothing is scheduled any more at t = 0.000 s(.|\n)*the cook waits"):
        run_virtual(main(), VirtualLoop(lambda: "the cook waits for water"))


def test_many_cancelled_timers_are_swept() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        for _ in range(50_000):
            loop.call_later(1e6, print).cancel()
        fired = [loop.call_later(0.001 * k, int) for k in range(20_000)]
        await asyncio.sleep(100)
        for timer in fired:
            timer.cancel()  # after the fact: must not count as sweepable
        return len(loop._timers), loop._gone  # type: ignore[attr-defined,return-value]

    left, gone = run_virtual(main(), VirtualLoop())  # type: ignore[misc]
    assert left < 25_000
    assert gone >= 0


def test_ten_thousand_pause_and_resume_schedules_lose_no_wake_up() -> None:
    """B10: an event set between the check and the wait. The loop's own pattern: clear, check, wait."""

    async def one(rng: random.Random) -> None:
        loop = asyncio.get_running_loop()
        changed, stock, eaten = asyncio.Event(), 0, 0

        async def producer() -> None:
            nonlocal stock
            for _ in range(3):
                await asyncio.sleep(rng.choice([0, 0, 1, 2]))
                stock += 1
                loop.call_soon(changed.set)

        async def consumer() -> None:
            nonlocal stock, eaten
            while eaten < 3:
                changed.clear()
                if stock:
                    stock -= 1
                    eaten += 1
                    await asyncio.sleep(rng.choice([0, 1]))
                    continue
                await changed.wait()

        await asyncio.gather(producer(), consumer())

    async def main() -> None:
        rng = random.Random(0)
        for _ in range(10_000):
            await one(rng)

    run_virtual(main(), VirtualLoop())  # a lost wake-up is a DeadlockError


def test_what_only_records_hears_events_later_in_order_and_at_the_latest_when_the_log_is_flushed() -> None:
    soon: list[Callable[[], None]] = []
    log = EventLog(None, lambda: 0.0, later=soon.append)
    decided: list[str] = []
    recorded: list[str] = []
    log.hear(deciding=[lambda e: decided.append(e["e"])], recording=[lambda e: recorded.append(e["e"])])
    log.emit("A")
    log.emit("B")
    assert (decided, recorded, len(soon)) == (["A", "B"], [], 1)
    soon.pop()()
    assert recorded == ["A", "B"]
    log.emit("C")
    log.flush()
    assert recorded == ["A", "B", "C"]
    soon.pop()()
    assert recorded == ["A", "B", "C"]
