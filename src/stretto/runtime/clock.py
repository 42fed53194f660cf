"""The virtual clock: an asyncio event loop that jumps to the next timer instead of waiting.

The same coroutines run on it as on the wall clock. When nothing is scheduled and nothing is ready, the run is stuck;
the loop says so at once instead of waiting for ever. Timers of one instant run in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from stretto.errors import DeadlockError

T = TypeVar("T")
_SWEEP = 10_000


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop in virtual time, starting at 0. No file descriptors, no threads, no signals."""

    def __init__(self, describe_stuck: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._set = 0
        self._gone = 0
        self._describe = describe_stuck

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's; the heap holds tuples, so that ordering timers costs no Python call."""
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def set_describe(self, describe_stuck: Callable[[], str]) -> None:
        """Who can say what everybody waits for."""
        self._describe = describe_stuck

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self._gone += 1
        if self._gone > _SWEEP and self._gone * 2 > len(self._timers):
            self._timers = [t for t in self._timers if not t[2].cancelled()]
            heapq.heapify(self._timers)
            self._gone = 0

    def _run_once(self) -> None:
        ready = self._ready  # type: ignore[attr-defined]
        if not ready:
            self._jump(ready)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _jump(self, ready: Any) -> None:
        """Move the clock to the next timer that still counts, and make all of that instant ready."""
        while True:
            timers = self._timers
            if not timers:
                detail = self._describe() if self._describe is not None else ""
                raise DeadlockError(
                    f"nothing is scheduled any more at t = {self._now:.3f} s although work remains.\n{detail}".rstrip()
                )
            when, _, timer = heapq.heappop(timers)
            if timer.cancelled():
                self._gone -= 1
                continue
            self._now = max(self._now, when)
            ready.append(timer)
            while timers and timers[0][0] <= when:
                timer = heapq.heappop(timers)[2]
                if timer.cancelled():
                    self._gone -= 1
                else:
                    ready.append(timer)
            return

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run a coroutine to its end in virtual time; raises ``DeadlockError`` when it is stuck."""
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    try:
        return loop.run_until_complete(task)
    except DeadlockError as stuck:
        # let the run say goodbye in its log, then report
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        raise stuck
    finally:
        try:
            _cancel_all(loop)
        finally:
            asyncio.set_event_loop(None)
            loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
