"""The virtual clock: an asyncio event loop that jumps to the next timer instead of waiting.

The same coroutines run on it as on the wall clock. When nothing is scheduled and nothing is ready, the run is stuck;
the loop says so at once instead of waiting for ever. Timers of one instant run in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextvars import Context
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from stretto.kernel.errors import DeadlockError

T = TypeVar("T")
_SWEEP = 10_000


class _Call(list[Any]):
    """A callback that is due, [callback or None if it was cancelled, arguments, context or None: the loop's]. What
    ``asyncio.Handle`` is without its cost: a simulation makes millions, and a list is made without a call in Python.
    """

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__

    def cancel(self) -> None:
        """Don't call it, and hold on to nothing that it would have been called with."""
        self[0], self[1], self[2] = None, (), None

    def cancelled(self) -> bool:
        """Was it cancelled?"""
        return self[0] is None


class _Timer(_Call):
    """A callback for a later time: [callback, arguments, context, time, loop, or None once it is due]."""

    __slots__ = ()

    def when(self) -> float:
        """Virtual time at which it is due."""
        return self[3]

    def cancel(self) -> None:
        """Don't call it; its entry in the heap is swept later, what it holds on to (a whole group, say) goes now."""
        if self[0] is not None:
            self[0], self[1], self[2] = None, (), None
            if self[4] is not None:
                self[4]._timer_gone()


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
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Call:
        """As asyncio's."""
        call = _Call((callback, args, context))
        self._due.append(call)
        return call

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there are no threads

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        """As asyncio's; the heap holds tuples, so that ordering timers costs no Python call."""
        timer = _Timer((callback, args, context, when, self))
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        return timer

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> _Timer:
        """As asyncio's."""
        when = self._now + delay
        timer = _Timer((callback, args, context, when, self))
        self._set += 1
        heappush(self._timers, (when, self._set, timer))
        return timer

    def set_describe(self, describe_stuck: Callable[[], str]) -> None:
        """Who can say what everybody waits for."""
        self._describe = describe_stuck

    def _timer_gone(self) -> None:
        self._gone += 1
        if self._gone > _SWEEP and self._gone * 2 > len(self._timers):
            self._timers = [t for t in self._timers if t[2][0] is not None]
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
                callback, args, context = call[0], call[1], call[2]
                if callback is None:
                    continue
                try:
                    if context is None:
                        callback(*args)
                    else:
                        context.run(callback, *args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"exception in callback {callback!r}", "exception": error})
            if self._stopping:  # type: ignore[attr-defined]
                return

    def _jump(self, due: deque[_Call]) -> None:
        """Move the clock to the next timer that still counts, and make all of that instant due."""
        timers = self._timers
        while timers:
            when, _, timer = heappop(timers)
            if timer[0] is None:
                self._gone -= 1
                continue
            if when > self._now:
                self._now = when
            timer[4] = None
            due.append(timer)
            while timers and timers[0][0] <= when:
                timer = heappop(timers)[2]
                if timer[0] is None:
                    self._gone -= 1
                else:
                    timer[4] = None
                    due.append(timer)
            return
        detail = self._describe() if self._describe is not None else ""
        raise DeadlockError(
            f"nothing is scheduled any more at t = {self._now:.3f} s although work remains.\n{detail}".rstrip()
        )

    def _process_events(self, event_list: list[object]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


class WallLoop(asyncio.SelectorEventLoop):
    """The event loop of the wall clock. A pause of this process (Ctrl-Z and ``fg``, a batch system's suspension) lets
    no deadline fire: all timers move by its length."""

    def __init__(self) -> None:
        super().__init__()
        self.paused_s = 0.0
        """Length of all pauses so far, as far as they were noticed."""
        self._seen = time.monotonic()

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        self._seen = time.monotonic()

    @contextlib.contextmanager
    def minding_pauses(self) -> Iterator[None]:
        """Inside, pauses are noticed when they end."""
        before = signal.signal(signal.SIGCONT, self._went_on)
        try:
            yield
        finally:
            signal.signal(signal.SIGCONT, before if before is not None else signal.SIG_DFL)

    def _went_on(self, number: int, frame: object) -> None:
        """It began when the loop was last seen at work, or a little later."""
        pause_s = time.monotonic() - self._seen
        self._seen += pause_s
        self.paused_s += pause_s
        for timer in self._scheduled:  # type: ignore[attr-defined]  # all by the same: their order stays
            timer._when += pause_s


class Sleep:
    """To be awaited once, by a coroutine: a wait on the clock of any asyncio loop. Its timer wakes the task itself,
    without the future and the second callback that ``asyncio.sleep`` has between them."""

    __slots__ = ("_asyncio_future_blocking", "_cancelled", "_loop", "_seconds", "_timer", "_wake")

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._loop, self._seconds = loop, seconds
        self._asyncio_future_blocking = True  # what a task expects of the future that it is to wait for
        self._cancelled = False

    def __await__(self) -> Generator[Sleep, None, None]:
        yield self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """For the task that waits."""
        return self._loop

    def add_done_callback(self, wake: Callable[[Sleep], object], *, context: Context | None = None) -> None:
        """For the task that waits: start the clock."""
        self._wake = (wake, context)
        self._timer = self._loop.call_later(self._seconds, wake, self, context=context)

    def cancel(self, msg: object = None) -> bool:
        """For the task that waits: it was cancelled."""
        if self._cancelled:
            return False
        self._cancelled = True
        self._timer.cancel()
        wake, context = self._wake
        self._loop.call_soon(wake, self, context=context)
        return True

    def result(self) -> None:
        """For the task that waits: how it ended."""
        del self._timer, self._wake  # the timer holds this pause: a cycle each would be left to the collector
        if self._cancelled:
            raise asyncio.CancelledError


@contextlib.contextmanager
def few_collections(allocations: int = 50_000) -> Iterator[None]:
    """Collect cycles rarely: by default the collector looks at the live objects every few thousand events."""
    thresholds = gc.get_threshold()
    gc.set_threshold(allocations, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def run_virtual(main: Coroutine[object, object, T], loop: VirtualLoop) -> T:
    """Run a coroutine to its end in virtual time; raises ``DeadlockError`` when it is stuck."""
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    try:
        # a thousand engines' trajectories are several hundred thousand live objects with next to no cycles among them:
        # a collection as they come into being would look at all of them for nothing (0.25 s for 200,000)
        with few_collections(1_000_000):
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
