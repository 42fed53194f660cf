"""Rewards and tools of virtual time: a process that can be killed, for whose answer everything waits.

On the virtual clock a call takes no time, however long it really takes; so it may as well be waited for, and what the
run does next can't depend on how fast this machine was. Only a call that passes its deadline is cut off by the wall
clock: its process is killed and replaced, and nobody else's call is disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from stretto.envs.scoring import FirstCalls, OnEvent, packed
from stretto.envs.scoring_child import START_DEADLINE_S, command, first_message
from stretto.kernel.errors import DataError, DeadlineError, WorkerError
from stretto.kernel.supervised import Child

T = TypeVar("T")
_NAME = "scoring-0"


class WaitingScoring:
    """One killable process behind the interface of ``ScoringPool``; started by the first call. ``deadline_s`` is in
    seconds of the wall clock and counts a call's own run time."""

    def __init__(
        self, deadline_s: float = 20.0, *, imports: Sequence[str] = (), on_event: OnEvent | None = None
    ) -> None:
        self._deadline_s, self._imports = deadline_s, tuple(imports)
        self._on_event = on_event or (lambda kind, worker, reason: None)
        self._child: Child | None = None
        self._first = FirstCalls()
        self._on_death: Callable[[BaseException], None] = lambda error: None
        self._broken: WorkerError | None = None
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the processes that live now."""
        return () if self._child is None else (self._child.pid,)

    def hear_death(self, on_death: Callable[[BaseException], None]) -> None:
        """Call this when every later call would fail with the same error."""
        self._on_death = on_death

    async def call(self, function: Callable[..., T], *args: object, deadline_s: float | None = None) -> T:
        """Run a module-level function; raises what it raised, ``DeadlineError``, or ``WorkerError`` when its process
        died."""
        if self._closed:
            raise WorkerError("scoring process: closed, it takes no more calls")
        if self._broken is not None:
            raise self._broken
        name, payload = packed(function, args)
        limit_s = deadline_s or self._deadline_s
        child = self._child = self._child or self._start()
        try:
            ok, value = child.ask(payload, limit_s)
        except TimeoutError as late:
            reason = f"{name} ran past its deadline of {limit_s:g} s; its process was killed"
            self._lost(reason)
            raise DeadlineError(reason) from late
        except EOFError as gone:
            reason = f"died during {name}, exit status {child.kill()}"
            self._lost(reason)
            raise WorkerError(f"scoring process {reason}{child.obituary}") from gone
        except Exception as unreadable:
            reason = f"{name} returned something that can't be read back: {unreadable}"
            self._lost(reason)
            raise DataError(reason) from unreadable
        except BaseException:  # an interrupt: the answer that is still to come must not be taken for the next one's
            self._lost("interrupted")
            raise
        self._first.count("")
        if not ok:
            raise value
        result: T = value
        return result

    async def close(self) -> None:
        """Kill the process."""
        self._closed = True
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _start(self) -> Child:
        child = Child(command)
        try:
            ok, value = child.ask(first_message(self._imports), START_DEADLINE_S)
            failure = "" if ok else f": {value}"
        except (TimeoutError, EOFError) as error:
            child.kill()
            failure = f" ({type(error).__name__}){child.obituary}"
        except BaseException:
            child.kill()
            raise
        if failure:
            child.kill()
            self._broken = WorkerError(f"scoring process did not start{failure}")
            self._on_death(self._broken)
            raise self._broken
        self._on_event("up", _NAME, "")
        return child

    def _lost(self, reason: str) -> None:
        assert self._child is not None
        self._child.kill()
        self._child = None
        self._on_event("down", _NAME, reason)
        if (hopeless := self._first.count(reason)) is not None:
            self._broken = hopeless
            self._on_death(hopeless)
