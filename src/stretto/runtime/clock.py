"""The virtual clock: an asyncio event loop that jumps to the next timer instead of waiting.

The same coroutines run on it as on the wall clock. When nothing is scheduled and nothing is ready, the run is stuck;
the loop says so at once instead of waiting for ever. Timers of one instant run in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from stretto.errors import DeadlockError

T = TypeVar("T")
_SWEEP = 10_000


class _Call:
    """A callback that is due: what ``asyncio.Handle`` is, without its cost (a simulation makes millions). Without a
    context of its own it runs in the loop's."""

    __slots__ = ("args", "callback", "context", "gone")

    def __init__(self, callback: Callable[..., Any], args: tuple[Any, ...], context: Context | None) -> None:
        self.callback, self.args, self.context = callback, args, context
        self.gone = False

    def cancel(self) -> None:
        """Don't call it."""
        self.gone = True

    def cancelled(self) -> bool:
        """Was it cancelled?"""
        return self.gone


class _Timer(_Call):
    """A callback for a later time."""

    __slots__ = ("_loop", "_when", "scheduled")

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        context: Context | None,
        loop: VirtualLoop,
    ) -> None:
        self._when, self._loop = when, loop
        self.callback, self.args, self.context = callback, args, context
        self.gone, self.scheduled = False, True

    def when(self) -> float:
        """Virtual time at which it is due."""
        return self._when

    def cancel(self) -> None:
        """Don't call it; its entry in the heap is swept later."""
        if not self.gone:
            self.gone = True
            if self.scheduled:
                self._loop._timer_gone()


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop in virtual time, starting at 0. No file descriptors, no threads, no signals."""

    def __init__(self, describe_stuck: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._now = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._due: deque[_Call] = deque()
        self._set = 0
        self._gone = 0
        self._describe = describe_stuck

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """As asyncio's."""
        call = _Call(callback, args, context)
        self._due.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """As asyncio's; the heap holds tuples, so that ordering timers costs no Python call."""
        timer = _Timer(when, callback, args, context, self)
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> Any:
        """As asyncio's."""
        when = self._now + delay
        timer = _Timer(when, callback, args, context, self)
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        return timer

    def set_describe(self, describe_stuck: Callable[[], str]) -> None:
        """Who can say what everybody waits for."""
        self._describe = describe_stuck

    def _timer_gone(self) -> None:
        self._gone += 1
        if self._gone > _SWEEP and self._gone * 2 > len(self._timers):
            self._timers = [t for t in self._timers if not t[2].gone]
            heapify(self._timers)
            self._gone = 0

    def _run_once(self) -> None:
        """Run until the loop is stopped: instant by instant, in each one what is due in the order of its making."""
        due = self._due
        while True:
            if not due:
                self._jump(due)
            for _ in range(len(due)):
                call = due.popleft()
                if call.gone:
                    continue
                try:
                    if call.context is None:
                        call.callback(*call.args)
                    else:
                        call.context.run(call.callback, *call.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler(
                        {"message": f"exception in callback {call.callback!r}", "exception": error}
                    )
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _jump(self, due: deque[_Call]) -> None:
        """Move the clock to the next timer that still counts, and make all of that instant due."""
        timers = self._timers
        while timers:
            when, _, timer = heappop(timers)
            if timer.gone:
                self._gone -= 1
                continue
            if when > self._now:
                self._now = when
            timer.scheduled = False
            due.append(timer)
            while timers and timers[0][0] <= when:
                timer = heappop(timers)[2]
                if timer.gone:
                    self._gone -= 1
                else:
                    timer.scheduled = False
                    due.append(timer)
            return
        detail = self._describe() if self._describe is not None else ""
        raise DeadlockError(
            f"nothing is scheduled any more at t = {self._now:.3f} s although work remains.\n{detail}".rstrip()
        )

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run a coroutine to its end in virtual time; raises ``DeadlockError`` when it is stuck."""
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    thresholds = gc.get_threshold()
    gc.set_threshold(50_000, 20, 20)  # the default looks at all live objects every few thousand events
    try:
        return loop.run_until_complete(task)
    except DeadlockError as stuck:
        # let the run say goodbye in its log, then report
        task.cancel()
        loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
        raise stuck
    finally:
        gc.set_threshold(*thresholds)
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
