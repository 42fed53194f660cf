"""The engines of a run and all requests that are made of them.

A client makes a request; the pool gives it its id, sends it to an engine and answers the client when the engine has
finished. Requests made in one turn of the event loop leave together, so that what an engine sees does not depend on how
the loop schedules its tasks. A request that ends as ``aborted`` (weights changed under ``abort``, its engine came up
anew) goes on as a new one, which is placed like any other. Nobody else holds a request: an engine handle
(``workers.base.EngineHandle``) computes and tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from stretto.data.trajectory import Completion
from stretto.kernel.errors import ConfigError, InvariantError, StrettoError, did_you_mean
from stretto.kernel.events import EventLog
from stretto.rollout.types import Request
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.workers.base import EngineHandle


class EnginePool:
    """Engines by name, in the order of ``handles``; iterating gives the engines.

    ``keeps``: they hold each version until nobody can ask for it any more (``PooledEngine.promise``). ``placement``:
    asked before each request (trajectory, name of its engine) for the engine that gets it; None: it stays.
    """

    def __init__(
        self, handles: Iterable[EngineHandle], log: EventLog, *, keeps: bool = False,
        placement: Callable[[int, str], str] | None = None,
    ) -> None:  # fmt: skip
        self.loop, self._log, self.placement = asyncio.get_running_loop(), log, placement
        self.ids: Iterator[int] = count()
        """Ids for requests, each given once."""
        self.batching_hint: Callable[[], bool] = lambda: False
        """True while further requests are about to be made: what there is waits for them."""
        self.on_return: Callable[[PooledEngine], None] | None = None
        """Called when an engine is up again and needs weights."""
        self.by_name: dict[str, PooledEngine] = {}
        for handle in handles:
            if handle.name in self.by_name:
                raise ConfigError(f"two engines are called {handle.name!r}: each needs a name of its own")
            self.by_name[handle.name] = PooledEngine(self, handle, log, keeps)

    def __getitem__(self, name: str) -> PooledEngine:
        return self.by_name[name]

    def __iter__(self) -> Iterator[PooledEngine]:
        return iter(self.by_name.values())

    def __len__(self) -> int:
        return len(self.by_name)

    def place(self, trajectory: int, engine: PooledEngine, least: int) -> PooledEngine:
        """The engine of a trajectory's next request: where ``placement`` says, else the one that it had. ``least``: the
        version of its last token, or the one at which its group was dispatched. Raises ``InvariantError`` for an engine
        that there is not, or that holds an older version."""
        name = engine.name if self.placement is None else self.placement(trajectory, engine.name)
        if name == engine.name:
            return engine
        found = self.by_name.get(name)
        if found is None or found.version is None or found.version < least:
            why = (
                did_you_mean(name, self.by_name) if found is None
                else f"it holds {'none' if found.version is None else f'version {found.version}'}, and the trajectory "
                f"is at version {least}"
            )  # fmt: skip
            raise InvariantError(f"control.router can't place trajectory {trajectory} on {name!r}: {why}")
        self._log.write({"e": "Placed", "t": self._log.now(), "traj": trajectory, "engine": name})
        return found

    def submit(self, request: Request, engine: PooledEngine, number: int | None) -> asyncio.Future[Completion]:
        """Ask for a completion. Finish ``aborted`` means: go on with a new request that holds the partial. ``engine``:
        that of its group. ``number``: of the request in its trajectory, as the log tells it; None: it isn't logged."""
        future: asyncio.Future[Completion] = asyncio.Future(loop=self.loop)
        engine.open[request.id] = (future, request.trajectory, number)
        if engine.at_once and engine.version is not None:
            engine.handle.add((request,))
        else:
            engine.queue(request)
        return future

    def cancel(self, request: int) -> None:
        """Nobody waits for this request any more."""
        for engine in self:
            if engine.open.pop(request, None) is not None:
                engine.handle.abort([request])
                return

    async def move(self, request: int, to: PooledEngine) -> bool:
        """Let a running request go on in another engine, with all it has; False: it is over. Raises ``StrettoError`` if
        that one refuses it, and then it goes on as a new request."""
        here = next((engine for engine in self if request in engine.open), None)
        if here is None:
            return False
        try:
            state = await here.handle.export(request)
        except StrettoError:
            if request in here.open:
                raise
            return False  # it finished meanwhile
        entry = here.open.pop(request, None)
        if entry is None:  # it was given up meanwhile
            return False
        to.open[request] = entry
        try:
            await to.handle.import_(state)
        except StrettoError:
            to.finished([(request, state.partial)])
            raise
        return True

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far, by id; ``settle`` and ``pause`` as ``EngineHandle.snapshot``."""
        told = [engine.handle for engine in self if engine.handle.capabilities.partial]
        made = await asyncio.gather(*(handle.snapshot(settle=settle, pause=pause) for handle in told))
        return {request: completion for part in made for request, completion in part.items()}

    async def close(self) -> None:
        """End all engines."""
        await asyncio.gather(*(engine.close() for engine in self))
