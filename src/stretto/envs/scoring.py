"""Where rewards and tools run: processes that can be killed, and the inline stand-in of virtual time.

A call that passes its deadline loses its process (SIGKILL) and nobody else's; so does one whose process dies.
Every process is replaced at once and none outlives the parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stretto.envs.scoring_child import HEADER
from stretto.errors import DataError, DeadlineError, WorkerError

_TAIL_BYTES = 4096
_START_DEADLINE_S = 60.0
_MAX_FAILED_STARTS = 3
OnEvent = Callable[[str, str, str], None]
"""Called as (``up`` | ``down``, worker name, reason)."""


class InlineScoring:
    """The same interface without processes: calls the function here and now (virtual time, tests)."""

    pids: tuple[int, ...] = ()

    async def start(self) -> None:
        """Nothing to start."""

    async def call(self, function: Callable[..., Any], *args: Any, deadline_s: float | None = None) -> Any:
        """What ``function(*args)`` returns or raises; ``deadline_s`` can't be enforced here."""
        return function(*args)

    async def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class _Job:
    payload: bytes
    name: str
    deadline_s: float
    result: asyncio.Future[Any]


@dataclass(slots=True)
class _Process:
    handle: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    tail: bytearray
    drain: asyncio.Task[None]
    exit: asyncio.Task[int]

    async def kill(self) -> None:
        """SIGKILL to the process and to what it started, then wait until it is gone."""
        if self.handle.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.handle.pid, signal.SIGKILL)
        await asyncio.wait({self.exit})  # not `await self.exit`: cancelling this kill must not cancel the watch
        self.writer.close()
        # A grandchild in a session of its own may hold the pipe open: don't wait for its end.
        await asyncio.wait({self.drain}, timeout=0.2)
        self.drain.cancel()
        # Process has no public close; without it such a pipe would stay open until garbage collection.
        self.handle._transport.close()  # type: ignore[attr-defined]

    def said(self) -> str:
        """The tail of what it printed."""
        text = bytes(self.tail).decode(errors="replace").strip()
        return f"; it last printed:\n{text}" if text else "; it printed nothing"


class ScoringPool:
    """``processes`` killable processes behind one bounded queue; ``deadline_s`` counts a call's own run time."""

    def __init__(
        self,
        processes: int = 1,
        deadline_s: float = 20.0,
        *,
        queue_size: int = 4096,
        on_event: OnEvent | None = None,
    ) -> None:
        self._count = processes
        self._deadline_s = deadline_s
        self._on_event = on_event or (lambda kind, worker, reason: None)
        self._queue: asyncio.Queue[_Job] = asyncio.Queue(queue_size)
        self._alive: dict[int, _Process] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: WorkerError | None = None
        self._closed = False

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the processes that live now."""
        return tuple(p.handle.pid for p in self._alive.values() if p.handle.returncode is None)

    @property
    def queued(self) -> int:
        """Calls that wait for a process."""
        return self._queue.qsize()

    async def start(self) -> None:
        """Start the processes in the background; calls may be queued at once. Called by the first ``call``."""
        if self._closed:
            raise WorkerError("scoring pool: closed, it takes no more calls")
        if not self._tasks:
            self._tasks = [asyncio.create_task(self._worker(slot)) for slot in range(self._count)]

    async def call(self, function: Callable[..., Any], *args: Any, deadline_s: float | None = None) -> Any:
        """Run a module-level function; raises what it raised, ``DeadlineError``, or ``WorkerError`` when its process
        died. Waits while the queue is full."""
        await self.start()
        if self._broken is not None:
            raise self._broken
        name = f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', function)}"
        if getattr(function, "__module__", None) == "__main__":
            raise DataError(f"{name}: another process can't import the main script; move the function to a module")
        try:
            payload = pickle.dumps((function, args))
        except Exception as error:
            raise DataError(f"{name}: not a module-level function with plain arguments: {error}") from error
        job = _Job(payload, name, deadline_s or self._deadline_s, asyncio.get_running_loop().create_future())
        await self._queue.put(job)
        return await job.result

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
                        self._broken = error
                        break
                    continue
                failed = 0
                reason = ""
                while not reason:
                    waiting = waiting or asyncio.create_task(self._queue.get())
                    await asyncio.wait({waiting, process.exit}, return_when=asyncio.FIRST_COMPLETED)
                    if process.exit.done():
                        reason = f"died while idle, exit status {process.exit.result()}"
                        break
                    job, waiting = waiting.result(), None
                    if not job.result.cancelled():
                        reason = await self._run(process, job)
                await process.kill()
                self._alive.pop(slot, None)
                self._on_event("down", f"scoring-{slot}", reason)
        finally:
            if waiting is not None:
                if waiting.done() and not waiting.cancelled():  # taken, not run: it fails with the rest of the queue
                    self._queue.put_nowait(waiting.result())
                waiting.cancel()
        self._fail_queue(self._broken)

    async def _run(self, process: _Process, job: _Job) -> str:
        """One call; returns why the process can't go on (empty: it can)."""
        try:
            async with asyncio.timeout(job.deadline_s):
                process.writer.write(HEADER.pack(len(job.payload)) + job.payload)
                await process.writer.drain()
                ok, value = await _receive(process.reader)
        except TimeoutError:
            reason = f"{job.name} ran past its deadline of {job.deadline_s:g} s; its process was killed"
            error: Exception = DeadlineError(reason)
        except (asyncio.IncompleteReadError, ConnectionError):
            await process.kill()
            status = process.handle.returncode
            reason = f"died during {job.name}, exit status {status}"
            error = WorkerError(f"scoring process {reason}{process.said()}")
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
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                handle = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", "from stretto.envs.scoring_child import main; main()",
                    str(theirs.fileno()), str(os.getpid()),
                    stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            except BaseException as error:
                writer.close()
                if isinstance(error, OSError):
                    raise WorkerError(f"scoring process did not start: {error}") from error
                raise
        # No await between here and the entry in _alive: a cancelled start must not lose its process.
        tail = bytearray()
        assert handle.stdout is not None
        process = _Process(
            handle, reader, writer, tail,
            asyncio.create_task(_keep_tail(handle.stdout, tail)), asyncio.create_task(handle.wait()),
        )  # fmt: skip
        self._alive[slot] = process
        try:
            paths = pickle.dumps([entry for entry in sys.path if entry])
            writer.write(HEADER.pack(len(paths)) + paths)
            async with asyncio.timeout(_START_DEADLINE_S):
                await _receive(reader)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
            await process.kill()
            self._alive.pop(slot, None)
            raise WorkerError(f"scoring process did not start ({type(error).__name__}){process.said()}") from error
        self._on_event("up", f"scoring-{slot}", "")
        return process


async def _receive(reader: asyncio.StreamReader) -> tuple[bool, Any]:
    (count,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    ok, value = pickle.loads(await reader.readexactly(count))
    return ok, value


async def _keep_tail(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while part := await stream.read(4096):
        tail += part
        del tail[:-_TAIL_BYTES]
