"""Every wait has an owner, a deadline and a name.

``Waits.wait_with_deadline`` wraps an awaitable: past ``warn_s`` it logs a ``Waiting`` event with the owner and what is
waited for; past the deadline it raises ``DeadlineError`` that says the same. ``describe`` lists all current waits, for
a stuck run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stretto.kernel.errors import DeadlineError
from stretto.kernel.events import EventLog

T = TypeVar("T")


class Waits:
    """The run's register of waits."""

    def __init__(self, log: EventLog, warn_s: float) -> None:
        self._log = log
        self._warn_s = warn_s
        self._current: dict[int, tuple[str, Callable[[], str], float]] = {}
        self._next = 0

    async def wait_with_deadline(
        self, awaitable: Awaitable[T], owner: str, what: str | Callable[[], str], deadline_s: float, setting: str,
        warn: bool = True,
    ) -> T:  # fmt: skip
        """Await with a deadline; ``setting`` names the config key that holds it. ``warn`` False: a long wait is no
        news, as its length is simulated."""
        say = what if callable(what) else lambda: what
        loop = asyncio.get_running_loop()
        key, self._next = self._next, self._next + 1
        since = loop.time()
        self._current[key] = (owner, say, since)
        warning = None
        if warn and self._warn_s < deadline_s:
            warning = loop.call_later(self._warn_s, self._warn, key)
        try:
            async with asyncio.timeout(deadline_s):
                return await awaitable
        except TimeoutError as error:
            if loop.time() - since < deadline_s - 1e-6:
                raise  # somebody else's timeout
            raise DeadlineError(
                f"{owner} waited {deadline_s:g} s for {say()}; deadlines.{setting} is over.\n{self.describe(key)}"
            ) from error
        finally:
            del self._current[key]
            if warning is not None:
                warning.cancel()

    def _warn(self, key: int) -> None:
        if key in self._current:
            owner, say, since = self._current[key]
            self._log.emit("Waiting", owner=owner, what=say(), since=self._log.run_time(since))

    def describe(self, but: int | None = None) -> str:
        """One line per current wait."""
        lines = [
            f"  {owner} waits for {say()} (since t = {since:.3f} s)"
            for key, (owner, say, since) in self._current.items()
            if key != but
        ]
        return "\n".join(["Waiting at that time:", *lines]) if lines else "Nobody else waits."
