"""Worker processes: start them early, talk to them, notice their death, leave none behind.

A child is a fresh interpreter (``python -m stretto.runtime.workers.child``) that inherits one end of a socket pair and
what the weight transport opened. It imports what its role needs at once and then waits for its spec,
so that imports overlap with whatever the parent does first. Its output goes to a log file, whose tail is part of the
error when it dies. The kernel kills it when this process dies; besides, it ends when its socket does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from stretto.data.identity import Role
from stretto.kernel.errors import StrettoError, WorkerError
from stretto.kernel.supervised import Child
from stretto.kernel.waits import Waits
from stretto.runtime.workers.wire import encode, receive

_GONE_S = 5.0
_STUCK_S = 60.0
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""glibc gives large freed blocks back to the kernel at once, and every tensor of a step then faults its pages in anew
(thousands of page faults a step). Workers keep them; other C libraries ignore these."""


def spawn(
    name: str, role: Role, *, log_dir: Path, descriptors: Sequence[int], threads: int, model_type: str = ""
) -> Child:
    """Start a child: it imports for ``role`` (and ``model_type``, a Transformers model) and waits for its spec. It
    inherits ``descriptors``."""
    log_dir.mkdir(parents=True, exist_ok=True)
    environment = {
        **_MALLOC,
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }

    def command(fd: int) -> list[str]:
        return [sys.executable, "-m", "stretto.runtime.workers.child", str(os.getpid()), str(fd), role, model_type]

    return Child(command, log=log_dir / f"{name}.log", environment=environment, pass_fds=descriptors)


class ChildProcess:
    """The conversation with a child. ``on_message`` gets what isn't an answer; ``on_death`` hears of its end."""

    def __init__(
        self,
        name: str,
        child: Child,
        waits: Waits,
        *,
        on_message: Callable[[Any], None],
        on_death: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self._child = child
        self._waits, self._on_message, self._on_death = waits, on_message, on_death
        self._writer: asyncio.StreamWriter | None = None
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._asked = 0
        self._listener: asyncio.Task[None] | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._phase = "starting python"

    @property
    def pid(self) -> int | None:
        """Process id while it lives."""
        return self._child.pid if self._child.alive else None

    @property
    def error(self) -> BaseException | None:
        """Why it is gone."""
        return self._error

    async def start(self, spec: dict[str, Any], deadline_s: float) -> Any:
        """Give it its spec and wait until it is ready; returns what it says of itself."""
        reader, self._writer = await asyncio.open_connection(sock=self._child.socket, limit=2**30)
        self._listener = asyncio.create_task(self._listen(reader), name=f"{self.name} listener")
        return await self._waits.wait_with_deadline(
            self.call(("spec", spec)), "start-up", lambda: f"{self.name}: {self._phase}", deadline_s, "startup_s"
        )

    def post(self, message: Any) -> None:
        """Send a message that has no answer."""
        if self._writer is not None and self._error is None:
            self._writer.write(encode((None, message)))

    def ask(self, message: Any, what: str, deadline_s: float, setting: str, owner: str = "the loop") -> Awaitable[Any]:
        """Send a message, now, and await its answer; several questions may be open at once."""
        return self._waits.wait_with_deadline(self.call(message), owner, f"{self.name}: {what}", deadline_s, setting)

    def call(self, message: Any) -> Coroutine[Any, Any, Any]:
        """Send a message, now, and await its answer without a deadline: the caller has its own."""
        if self._error is not None:
            raise self._error
        if self._writer is None:
            raise WorkerError(f"{self.name} has not been started")
        number, self._asked = self._asked, self._asked + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._writer.write(encode((number, message)))
        return self._answer(number, answer)

    async def _answer(self, number: int, answer: asyncio.Future[Any]) -> Any:
        try:
            return await answer
        finally:
            self._questions.pop(number, None)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        said: BaseException | None = None
        try:
            while True:
                kind, value = await receive(reader)
                if kind == "answer" or kind == "refused":  # refused: an expected error; the worker lives on
                    number, content = value
                    answer = self._questions.get(number)
                    if answer is not None and not answer.done():
                        answer.set_result(content) if kind == "answer" else answer.set_exception(content)
                elif kind == "phase":
                    self._phase = value
                elif kind == "error":
                    said = value
                else:
                    self._on_message((kind, value))
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._died(said)
        except Exception as error:  # what a message set off here failed (a full disk under the log, say)
            self._gone(error)

    async def _died(self, said: BaseException | None) -> None:
        if self._closing:
            return
        await self._child.exited(_GONE_S)
        if isinstance(said, StrettoError):
            self._gone(said)
        else:
            printed = self._child.said or f"(nothing; see {self._child.log})"
            self._gone(WorkerError(f"{self.name} {self._child.fate} while {self._phase}; it last printed:\n{printed}"))

    def _gone(self, error: BaseException) -> None:
        """Nobody listens to it any more: whoever waits for an answer learns why."""
        self._error = error
        for answer in self._questions.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # marks it as seen: whoever asked may have ended
        self._on_death(error)

    async def close(self, deadline_s: float) -> None:
        """Ask it to end; kill it at the deadline."""
        self._closing = True
        if self._writer is not None:
            if self._error is None:
                self.post(("close",))
                await self._child.exited(deadline_s)
            self._writer.close()
        self._child.strike()
        if await self._child.exited(_STUCK_S):
            self._child.kill()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
