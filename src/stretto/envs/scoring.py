"""Where rewards and tools run: processes that can be killed, and a stand-in without processes (simulation, tests).

A call that passes its deadline loses its process (SIGKILL) and nobody else's; so does one whose process dies.
Every process is replaced at once and none outlives the parent.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from stretto.envs.scoring_child import START_DEADLINE_S, command, first_message
from stretto.kernel.child import HEADER
from stretto.kernel.errors import DataError, DeadlineError, WorkerError
from stretto.kernel.supervised import Child

_MAX_FAILED_STARTS = 3
_MAX_FIRST_FAILURES = 10
"""So many calls that hang or kill their process, before any call returned, end the pool."""
T = TypeVar("T")
OnEvent = Callable[[str, str, str], None]
"""Called as (``up`` | ``down``, worker name, reason)."""


class InlineScoring:
    """The same interface without processes: calls the function here and now (simulation, tests)."""

    pids: tuple[int, ...] = ()

    async def start(self) -> None:
        """Nothing to start."""

    async def call(self, function: Callable[..., T], *args: object, deadline_s: float | None = None) -> T:
        """What ``function(*args)`` returns or raises; ``deadline_s`` can't be enforced here."""
        return function(*args)

    async def close(self) -> None:
        """Nothing to close."""


class FirstCalls:
    """Calls that cost their process its life, before any call returned: so many in a row are no accident."""

    def __init__(self) -> None:
        self._returned = False
        self._failures = 0

    def count(self, reason: str) -> WorkerError | None:
        """``reason``: why the call cost its process its life (empty: it returned or raised). The error that ends the
        pool, if this one was too many."""
        self._returned = self._returned or not reason
        self._failures += not self._returned
        if self._returned or self._failures < _MAX_FIRST_FAILURES:
            return None
        return WorkerError(
            f"scoring: none of the first {self._failures} calls returned. The last one: {reason}. "
            "Fix the function, or raise deadlines.score_s if it needs more time"
        )


def packed(function: Callable[..., object], args: tuple[object, ...]) -> tuple[str, bytes]:
    """The name of a call for messages, and the call as it travels; ``DataError`` if it can't."""
    name = getattr(function, "name", None)
    name = name or f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)}"
    if getattr(function, "__module__", None) == "__main__":
        raise DataError(f"{name}: another process can't import the main script; move the function to a module")
    try:
        return name, pickle.dumps((function, args))
    except Exception as error:
        raise DataError(f"{name}: not a module-level function with plain arguments: {error}") from error


@dataclass(slots=True)
class _Process:
    """One process and the streams to it. ``end``: done when it is gone."""

    child: Child
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    end: asyncio.Task[bool]

    async def answer(self) -> tuple[bool, Any]:
        """(did the call return, what it returned or raised)."""
        (count,) = HEADER.unpack(await self.reader.readexactly(HEADER.size))
        ok, value = pickle.loads(await self.reader.readexactly(count))
        return ok, value

    async def kill(self) -> int:
        """End it and what it started; its exit status."""
        self.child.strike()
        await asyncio.wait({self.end})  # not `await self.end`: cancelling this kill must not cancel the watch
        self.writer.close()
        return self.child.kill()


@dataclass(slots=True)
class _Job:
    payload: bytes
    name: str
    deadline_s: float
    result: asyncio.Future[Any]


class ScoringPool:
    """``processes`` killable processes behind one bounded queue; ``deadline_s`` counts a call's own run time.

    Each process first loads ``imports`` (modules, ``module:function`` of rewards); no call pays for that, not even
    after a restart. When no process can start, or none of the first calls returns, the pool ends: see ``hear_death``.
    """

    def __init__(
        self,
        processes: int = 1,
        deadline_s: float = 20.0,
        *,
        imports: Sequence[str] = (),
        queue_size: int = 4096,
        on_event: OnEvent | None = None,
    ) -> None:
        self._count = processes
        self._deadline_s = deadline_s
        self._on_event = on_event or (lambda kind, worker, reason: None)
        self._queue: asyncio.Queue[_Job] = asyncio.Queue(queue_size)
        self._alive: dict[int, _Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._imports = tuple(imports)
        self._broken: WorkerError | None = None
        self._first = FirstCalls()
        self._on_death: Callable[[BaseException], None] = lambda error: None
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the processes that live now."""
        return tuple(p.child.pid for p in self._alive.values() if p.child.alive)

    @property
    def queued(self) -> int:
        """Calls that wait for a process."""
        return self._queue.qsize()

    def hear_death(self, on_death: Callable[[BaseException], None]) -> None:
        """Call this when the pool has given up: every later call would fail with the same error."""
        self._on_death = on_death

    async def start(self) -> None:
        """Start the processes in the background; calls may be queued at once. Called by the first ``call``."""
        if self._closed:
            raise WorkerError("scoring pool: closed, it takes no more calls")
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._worker(slot)) for slot in range(self._count)]

    async def call(self, function: Callable[..., T], *args: object, deadline_s: float | None = None) -> T:
        """Run a module-level function; raises what it raised, ``DeadlineError``, or ``WorkerError`` when its process
        died. Waits while the queue is full."""
        await self.start()
        if self._broken is not None:
            raise self._broken
        name, payload = packed(function, args)
        job = _Job(payload, name, deadline_s or self._deadline_s, asyncio.get_running_loop().create_future())
        await self._queue.put(job)
        result: T = await job.result
        return result

    async def close(self) -> None:
        """Kill every process, fail every waiting call, and return when nothing is left."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        await asyncio.gather(*(process.kill() for process in self._alive.values()))
        self._alive.clear()
        self._fail_queue(WorkerError("scoring pool: closed while the call waited"))

    def _fail_queue(self, error: WorkerError) -> None:
        while not self._queue.empty():
            job = self._queue.get_nowait()
            if not job.result.done():
                job.result.set_exception(error)

    async def _worker(self, slot: int) -> None:
        """Own one process: start it, feed it, replace it. Ends only when starting keeps failing."""
        failed = 0
        waiting: asyncio.Task[_Job] | None = None
        try:
            while True:
                try:
                    process = await self._start(slot)
                except WorkerError as error:
                    failed += 1
                    self._on_event("down", f"scoring-{slot}", str(error))
                    if failed >= _MAX_FAILED_STARTS:
                        self._give_up(error)
                        break
                    continue
                failed = 0
                reason = ""
                while not reason:
                    waiting = waiting or asyncio.create_task(self._queue.get())
                    await asyncio.wait({waiting, process.end}, return_when=asyncio.FIRST_COMPLETED)
                    if process.end.done():
                        reason = f"died while idle, exit status {process.child.status}"
                        break
                    job, waiting = waiting.result(), None
                    if not job.result.cancelled():
                        reason = await self._run(process, job)
                        if (hopeless := self._first.count(reason)) is not None:
                            self._give_up(hopeless)
                await process.kill()
                self._alive.pop(slot, None)
                self._on_event("down", f"scoring-{slot}", reason)
                if self._broken is not None:
                    break
        finally:
            if waiting is not None:
                if waiting.done() and not waiting.cancelled():  # taken, not run: it fails with the rest of the queue
                    self._queue.put_nowait(waiting.result())
                waiting.cancel()
        if self._broken is not None:
            self._fail_queue(self._broken)

    def _give_up(self, error: WorkerError) -> None:
        if self._broken is None:
            self._broken = error
            self._on_death(error)

    async def _run(self, process: _Process, job: _Job) -> str:
        """One call; returns why the process can't go on (empty: it can)."""
        try:
            async with asyncio.timeout(job.deadline_s):
                process.writer.write(HEADER.pack(len(job.payload)) + job.payload)
                await process.writer.drain()
                ok, value = await process.answer()
        except TimeoutError:
            reason = f"{job.name} ran past its deadline of {job.deadline_s:g} s; its process was killed"
            error: Exception = DeadlineError(reason)
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await process.kill()
            reason = f"died during {job.name}, exit status {status}"
            error = WorkerError(f"scoring process {reason}{process.child.obituary}")
        except asyncio.CancelledError:
            if not job.result.done():
                job.result.set_exception(WorkerError(f"scoring pool: closed while {job.name} ran"))
            raise
        except Exception as unreadable:
            reason = f"{job.name} returned something that can't be read back: {unreadable}"
            error = DataError(reason)
        else:
            if not job.result.done():
                if ok:
                    job.result.set_result(value)
                else:
                    job.result.set_exception(value)
            return ""
        if not job.result.done():
            job.result.set_exception(error)
        return reason

    async def _start(self, slot: int) -> _Process:
        try:
            child = Child(command)
        except OSError as error:
            raise WorkerError(f"scoring process did not start: {error}") from error
        try:
            reader, writer = await asyncio.open_connection(sock=child.socket)
        except BaseException:
            child.kill()
            raise
        # No await between here and the entry in _alive: a cancelled start must not lose its process.
        process = _Process(child, reader, writer, asyncio.create_task(child.exited()))
        self._alive[slot] = process
        try:
            first = first_message(self._imports)
            writer.write(HEADER.pack(len(first)) + first)
            async with asyncio.timeout(START_DEADLINE_S):
                ready, value = await process.answer()
            failure = "" if ready else f": {value}"
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await process.kill()
            failure = f" ({type(error).__name__}){child.obituary}"
        if failure:
            await process.kill()
            self._alive.pop(slot, None)
            raise WorkerError(f"scoring process did not start{failure}")
        self._on_event("up", f"scoring-{slot}", "")
        return process
