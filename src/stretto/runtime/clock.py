"""The virtual clock: an asyncio event loop that jumps to the next timer instead of waiting.

The same coroutines run on it as on the wall clock. When nothing is scheduled and nothing is ready, the run is stuck;
the loop says so at once instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from stretto.errors import DeadlockError

T = TypeVar("T")


class _Jump:
    """Stands in for the loop's selector: 'waiting' moves the clock."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise DeadlockError(self._loop.describe_stuck())
        if timeout > 0:
            self._loop.jump()
        return []

    def close(self) -> None:
        pass


class VirtualLoop(asyncio.BaseEventLoop):
    """Event loop in virtual time, starting at 0. No file descriptors, no threads, no signals."""

    def __init__(self, describe_stuck: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = _Jump(self)
        self._clock_resolution = 0.0
        self._describe = describe_stuck

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def jump(self) -> None:
        """Move the clock to the next timer, exactly."""
        self._now = max(self._now, self._scheduled[0]._when)  # type: ignore[attr-defined]

    def describe_stuck(self) -> str:
        """What everybody waits for."""
        detail = self._describe() if self._describe is not None else ""
        return f"nothing is scheduled any more at t = {self._now:.3f} s although work remains.\n{detail}".rstrip()

    def set_describe(self, describe_stuck: Callable[[], str]) -> None:
        """Who can say what everybody waits for."""
        self._describe = describe_stuck

    def _run_once(self) -> None:
        # timers due at exactly the current time must run although the resolution is 0
        self._clock_resolution = 1e-12 * max(1.0, self._now)
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def run_virtual(main: Coroutine[Any, Any, T], loop: VirtualLoop) -> T:
    """Run a coroutine to its end in virtual time; raises ``DeadlockError`` when it is stuck."""
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(main)
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
