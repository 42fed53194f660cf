"""Timeouts of equal length, many at a time, with one timer among them all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
_EARLY_S = 1e-6
"""A loop may call a timer by its clock's resolution too early."""


class TimeoutQueue(Generic[T]):
    """Calls ``late(item)`` for each item that is still there ``seconds`` after it was added.

    As all wait equally long, they are due in the order of their coming: only the first one needs a timer. That of an
    item which has left meanwhile is set again when it fires; while nothing is there, nothing is scheduled.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, seconds: float, late: Callable[[T], None]) -> None:
        self._loop, self._seconds, self._late = loop, seconds, late
        self._due: dict[int, tuple[float, T]] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, item: T) -> int:
        """From now on; returns the key with which it can leave."""
        key, self._next = self._next, self._next + 1
        when = self._loop.time() + self._seconds
        self._due[key] = (when - self._paused_s, item)
        if self._timer is None:
            self._timer = self._loop.call_at(when, self._fire)
        return key

    @property
    def _paused_s(self) -> float:
        """Pauses of this process count for nobody; a ``WallLoop`` moves its timers by them."""
        return getattr(self._loop, "paused_s", 0.0)

    def drop(self, key: int) -> None:
        """This one is in time (or was late before)."""
        self._due.pop(key, None)
        if not self._due and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        paused_s = self._paused_s
        until = self._loop.time() + _EARLY_S - paused_s
        while self._due:
            key = next(iter(self._due))
            when, item = self._due[key]
            if when > until:
                if self._timer is None:
                    self._timer = self._loop.call_at(when + paused_s, self._fire)
                return
            del self._due[key]
            self._late(item)
