"""Worker processes: start them, talk to them, notice their death, leave none behind.

A child is a fresh interpreter (``python -m stretto.runtime.workers.child``) that gets one end of a socket pair and the
shared weight memory as inherited file descriptors. Its output goes to a log file, whose tail is part of the error when
it dies. The kernel kills it when this process dies; besides, it ends when its socket does.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.errors import StrettoError, WorkerError
from stretto.runtime.waits import Waits
from stretto.runtime.workers.wire import encode, receive

_TAIL_BYTES = 3000


class ChildProcess:
    """One worker process. ``on_message`` gets what isn't the answer to a call; ``on_death`` hears of its end."""

    def __init__(
        self,
        name: str,
        spec: dict[str, Any],
        *,
        log_dir: Path,
        memory_fd: int,
        threads: int,
        waits: Waits,
        on_message: Callable[[Any], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self.name, self._spec = name, spec
        self._log_path = log_dir / f"{name}.log"
        self._memory_fd, self._threads, self._waits = memory_fd, threads, waits
        self._on_message, self._on_death = on_message, on_death
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers: asyncio.Queue[Any] = asyncio.Queue()
        self._listener: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._phase = "starting python"
        self._lock = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self, deadline_s: float) -> Any:
        """Start it and wait until it is ready; returns what it says of itself."""
        ours, theirs = socket.socketpair()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self._threads),
            "MKL_NUM_THREADS": str(self._threads),
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
        }
        with open(self._log_path, "ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "stretto.runtime.workers.child", str(theirs.fileno()), str(self._memory_fd),
                stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                pass_fds=(theirs.fileno(), self._memory_fd), env=environment, start_new_session=True,
            )  # fmt: skip
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=2**30)
        self._listener = asyncio.create_task(self._listen(reader), name=f"{self.name} listener")
        self.post(self._spec)
        return await self._waits.on(
            self._answer(), "start-up", lambda: f"{self.name}: {self._phase}", deadline_s, "startup_s"
        )

    def post(self, message: Any) -> None:
        """Send a message that has no answer."""
        if self._writer is None or self._error is not None:
            return
        self._writer.write(encode(message))

    async def ask(self, message: Any, what: str, deadline_s: float, setting: str, owner: str = "the loop") -> Any:
        """Send a message and wait for its answer. One question at a time."""
        async with self._lock:
            if self._error is not None:
                raise self._error
            self.post(message)
            return await self._waits.on(self._answer(), owner, f"{self.name}: {what}", deadline_s, setting)

    async def _answer(self) -> Any:
        answer = await self._answers.get()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        said: BaseException | None = None
        try:
            while True:
                kind, value = await receive(reader)
                if kind == "answer":
                    self._answers.put_nowait(value)
                elif kind == "phase":
                    self._phase = value
                elif kind == "refused":  # an expected error: the worker lives on
                    self._answers.put_nowait(value)
                elif kind == "error":
                    said = value
                else:
                    self._on_message((kind, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        await self._died(said)

    async def _died(self, said: BaseException | None) -> None:
        assert self._process is not None
        if self._closing:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), 5.0)
        code = self._process.returncode
        if isinstance(said, StrettoError):
            self._error = said
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exited ({code})"
            self._error = WorkerError(f"{self.name} {how} while {self._phase}; it last printed:\n{self._tail()}")
        self._answers.put_nowait(self._error)
        self._on_death(self._error)

    def _tail(self) -> str:
        with contextlib.suppress(OSError):
            data = self._log_path.read_bytes()[-_TAIL_BYTES:]
            if data.strip():
                return data.decode(errors="replace").strip()
        return f"(nothing; see {self._log_path})"

    async def close(self, deadline_s: float) -> None:
        """Ask it to end; kill it at the deadline."""
        self._closing = True
        if self._process is None:
            return
        if self._process.returncode is None and self._writer is not None and self._error is None:
            self.post(("close",))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), deadline_s)
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._writer is not None:
            self._writer.close()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
