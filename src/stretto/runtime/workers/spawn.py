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
from typing import Any, TypeVar, cast

from stretto.data.identity import Role
from stretto.kernel.errors import StrettoError, WorkerError
from stretto.kernel.supervised import Child
from stretto.kernel.waits import Waits
from stretto.runtime.workers.messages import (
    Answer,
    Close,
    Dying,
    EngineReport,
    FromWorker,
    Letter,
    Order,
    Phase,
    Question,
    Refused,
    Staged,
    WorkerSpec,
)
from stretto.runtime.workers.wire import encode, receive

T = TypeVar("T")
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
    """The conversation with a child. ``on_message`` gets what it tells by itself; ``on_death`` hears of its end."""

    def __init__(
        self,
        name: str,
        child: Child,
        waits: Waits,
        *,
        on_message: Callable[[EngineReport | Staged], None],
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

    async def start(self, spec: WorkerSpec, deadline_s: float) -> None:
        """Give it its spec and wait until it is ready."""
        reader, self._writer = await asyncio.open_connection(sock=self._child.socket, limit=2**30)
        self._listener = asyncio.create_task(self._listen(reader), name=f"{self.name} listener")
        await self._waits.wait_with_deadline(
            self.call(spec), "start-up", lambda: f"{self.name}: {self._phase}", deadline_s, "startup_s"
        )

    def post(self, order: Order) -> None:
        """Send what has no answer."""
        if self._writer is not None and self._error is None:
            self._writer.write(encode(Letter(None, order)))

    def ask(
        self, question: Question[T], what: str, deadline_s: float, setting: str, owner: str = "the loop"
    ) -> Awaitable[T]:
        """Send a question, now, and await its answer; several may be open at once."""
        return self._waits.wait_with_deadline(self.call(question), owner, f"{self.name}: {what}", deadline_s, setting)

    def call(self, question: Question[T]) -> Coroutine[object, None, T]:
        """Send a question, now, and await its answer without a deadline: the caller has its own."""
        if self._error is not None:
            raise self._error
        if self._writer is None:
            raise WorkerError(f"{self.name} has not been started")
        number, self._asked = self._asked, self._asked + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        self._writer.write(encode(Letter(number, cast("Question[object]", question))))
        return self._answer(number, answer)

    async def _answer(self, number: int, answer: asyncio.Future[T]) -> T:
        try:
            return await answer
        finally:
            self._questions.pop(number, None)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        said: BaseException | None = None
        try:
            while True:
                message: FromWorker = await receive(reader)
                match message:
                    case Answer(number, value):
                        if (asked := self._open(number)) is not None:
                            asked.set_result(value)
                    case Refused(number, error):
                        if (asked := self._open(number)) is not None:
                            asked.set_exception(error)
                    case Phase(name):
                        self._phase = name
                    case Dying(error):
                        said = error
                    case _:
                        self._on_message(message)
        except (asyncio.IncompleteReadError, ConnectionError):
            await self._died(said)
        except Exception as failure:  # what a message set off here failed (a full disk under the log, say)
            self._gone(failure)

    def _open(self, number: int | None) -> asyncio.Future[Any] | None:
        """Question ``number``, if somebody waits for its answer."""
        asked = None if number is None else self._questions.get(number)
        return None if asked is None or asked.done() else asked

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
                self.post(Close())
                await self._child.exited(deadline_s)
            self._writer.close()
        self._child.strike()
        if await self._child.exited(_STUCK_S):
            self._child.kill()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)
