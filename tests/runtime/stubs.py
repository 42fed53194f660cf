"""Worker processes without processes: a test holds the child's end of the socket and speaks for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stretto.config.schema import RunConfig
from stretto.kernel.events import Event, EventLog
from stretto.kernel.waits import Waits
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.workers import messages as say
from stretto.runtime.workers.process import ProcessEngine, ProcessLearner
from stretto.runtime.workers.wire import ChildWire
from stretto.weights.transport import Place

SPEC = say.WorkerSpec(RunConfig(), "nowhere", (1,), 1, ("files", Place("nowhere")), keep_versions=False)


class Child:
    """What a worker process says and hears; towards its parent it is a ``kernel.supervised.Child``."""

    pid = 1 << 30  # no such process
    log = Path("/nonexistent")
    said = ""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        self.wire = ChildWire(theirs.detach())
        self.status: int | None = None

    @property
    def alive(self) -> bool:
        """Of a supervised child, as what follows."""
        return self.status is None

    @property
    def fate(self) -> str:
        return "was killed by SIGKILL"

    async def exited(self, deadline_s: float) -> bool:
        until = asyncio.get_running_loop().time() + deadline_s
        while self.alive and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.001)
        return not self.alive

    def strike(self) -> None:
        self.die()

    def kill(self) -> int:
        self.die()
        self.socket.close()
        return -9

    async def next(self) -> tuple[int | None, Any]:
        """The next message of the parent: (number, content)."""
        async with asyncio.timeout(5):
            while not self.wire.poll():
                await asyncio.sleep(0.001)
        number, content = self.wire.receive()
        return number, content

    async def expect(self, kind: type) -> int | None:
        """The next message must be of this kind; returns its number."""
        number, content = await self.next()
        assert isinstance(content, kind), content
        return number

    @property
    def silent(self) -> bool:
        """Has the parent sent nothing more?"""
        return not self.wire.poll()

    def answer(self, number: int | None, value: Any) -> None:
        """Answer a question."""
        self.wire.send(say.Answer(number, value))

    async def come_up(self) -> None:
        """Take the spec and be ready."""
        self.answer(await self.expect(say.WorkerSpec), self.pid)

    def die(self) -> None:
        """As by kill -9."""
        if self.status is None:
            self.status = -9
            with contextlib.suppress(OSError):
                self.wire._socket.shutdown(socket.SHUT_RDWR)
            self.wire._socket.close()


class Bench:
    """A log, its waits and the children that come up one after another."""

    def __init__(
        self, children: int = 1, warn_s: float = 30.0, listener: Callable[[Event], None] | None = None
    ) -> None:
        self.events: list[Event] = []
        self.log = EventLog(None, asyncio.get_running_loop().time)
        self.log.hear(recording=[self.events.append] + ([listener] if listener is not None else []))
        self.waits = Waits(self.log, warn_s)
        self.children = [Child() for _ in range(children)]
        self._acquired = iter(self.children)

    def learner(self, step_s: float = 5.0) -> ProcessLearner:
        """A handle of the first child."""
        return ProcessLearner(SPEC, self.log, self.waits, acquire=self._next, startup_s=5,
                              step_s=step_s, shutdown_s=1)  # fmt: skip

    def engine(self, max_restarts: int = 0, publish_s: float = 5.0) -> PooledEngine:
        """An engine of the children, one after another, alone in its pool."""
        handle = ProcessEngine("engine-0", SPEC, self.waits, acquire=self._next,
                               startup_s=5, publish_s=publish_s, shutdown_s=1, max_restarts=max_restarts,
                               slice_size=None)  # fmt: skip
        return EnginePool([handle], self.log)["engine-0"]

    def _next(self) -> Any:
        return next(self._acquired)

    async def close(self, handle: PooledEngine | ProcessLearner) -> None:
        """Everything ends."""
        for child in self.children:
            child.die()
        await handle.close()


async def up(handle: PooledEngine | ProcessLearner, child: Child) -> None:
    """Start a handle with its child."""
    await asyncio.gather(handle.start(), child.come_up())
