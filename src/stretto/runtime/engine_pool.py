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
from dataclasses import replace
from itertools import count

from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.errors import ConfigError, InvariantError, StrettoError, did_you_mean
from stretto.kernel.events import EventLog
from stretto.rollout.types import ExportedRequest, Request, empty_completion
from stretto.runtime.pooled_engine import Open, PooledEngine
from stretto.runtime.workers.base import EngineHandle


def _under(state: ExportedRequest, version: int | None, in_flight: InFlight) -> ExportedRequest | None:
    """A running request as an engine with ``version`` takes it over; None: it has to begin anew there, or that engine
    has none (any more)."""
    if version is None:
        return None
    if state.version == version:
        return state
    if in_flight == InFlight.KEEP:
        return replace(state, version=version)
    if in_flight == InFlight.REPREFILL:
        return replace(state, version=version, keys=None, values=None)
    return None


class EnginePool:
    """Engines by name, in the order of ``handles``; iterating gives the engines.

    ``keeps``: they hold each version until nobody can ask for it any more (``PooledEngine.promise``). ``placement``:
    asked before each request (trajectory, name of its engine) for the engine that gets it; None: it stays.
    ``redirection``: asked (least version) where a request goes whose engine has died; None: it waits for it.
    """

    def __init__(
        self, handles: Iterable[EngineHandle], log: EventLog, *, keeps: bool = False,
        placement: Callable[[int, str], str] | None = None, redirection: Callable[[int], str | None] | None = None,
    ) -> None:  # fmt: skip
        self.loop, self._log, self.placement = asyncio.get_running_loop(), log, placement
        self._redirection = redirection
        self.ids: Iterator[int] = count()
        """Ids for requests, each given once."""
        self.batching_hint: Callable[[], bool] = lambda: False
        """True while further requests are about to be made: what there is waits for them."""
        self.several_turns = False
        """Has any trajectory asked twice? Then engines are told that it is worth to keep what they have computed."""
        self.on_return: Callable[[PooledEngine], None] | None = None
        """Called when an engine is up again and needs weights."""
        self.between: dict[int, Completion] = {}
        """Requests that no engine has as they move, and what was sampled for them; each dict of ``_passing`` collects
        those of its time."""
        self._passing: list[dict[int, Completion]] = []
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

    def redirect(self, trajectory: int, engine: PooledEngine, least: int) -> PooledEngine:
        """The engine of the next request of a trajectory whose own has died and is coming up anew: another one that
        holds no older version than ``least``, if ``redirection`` names one."""
        name = None if self._redirection is None else self._redirection(least)
        if name is None or name == engine.name:
            return engine
        self._log.write({"e": "Placed", "t": self._log.now(), "traj": trajectory, "engine": name})
        return self.by_name[name]

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

    async def move(
        self, request: int, here: PooledEngine, to: PooledEngine, in_flight: InFlight = InFlight.KEEP
    ) -> PooledEngine:
        """Let a running request of ``here`` go on in another engine, with all it has. Returns where it goes on: here,
        if that has loaded newer weights than ``to`` meanwhile. Where ``to`` holds the newer ones, ``in_flight`` says
        what that means for the request, as it does for one that stays. An engine that refuses it, as it was given other
        weights meanwhile, answers what it had sampled, as aborted. Nothing happens to a request that is over."""
        taken = await self._take(request, here)
        if taken is None:
            return to
        entry, state = taken
        pinned = state.request.version is not None
        if not pinned and to.version is not None and to.version < state.version:
            to = here
        to.open[request] = entry
        self.between[request] = state.partial
        for seen in self._passing:
            seen[request] = state.partial
        adapted = state if (pinned or to is here) and to.version is not None else _under(state, to.version, in_flight)
        try:
            if adapted is None:
                raise StrettoError("it goes on as a new request")
            await to.handle.import_(adapted)
        except StrettoError:
            to.finished([(request, state.partial)])
        finally:
            del self.between[request]
        return to

    async def evict(self, request: int, here: PooledEngine) -> None:
        """Take a running request out of its engine: what it has sampled is answered, as aborted."""
        taken = await self._take(request, here)
        if taken is not None and not taken[0][0].done():
            taken[0][0].set_result(taken[1].partial)

    async def _take(self, request: int, here: PooledEngine) -> tuple[Open, ExportedRequest] | None:
        """Who waits for a running request, and all that its engine has of it, which forgets it."""
        if request not in here.open:
            return None
        unsent = here.withdraw(request)
        if unsent is not None:
            return here.open.pop(request), ExportedRequest(unsent, empty_completion(), here.version or 0, None, None)
        try:
            state = await here.handle.export(request)
        except StrettoError:  # it has finished, or was aborted, and its answer is on its way; or its engine died
            return None
        entry = here.open.pop(request, None)
        return None if entry is None else (entry, state)  # None: it was given up meanwhile

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far, by id; ``settle`` and ``pause`` as ``EngineHandle.snapshot``."""
        told = [engine.handle for engine in self if engine.handle.capabilities.partial]
        passing = dict(self.between)
        self._passing.append(passing)
        try:
            made = await asyncio.gather(*(handle.snapshot(settle=settle, pause=pause) for handle in told))
        finally:
            self._passing = [seen for seen in self._passing if seen is not passing]
        return passing | {request: completion for part in made for request, completion in part.items()}

    async def close(self) -> None:
        """End all engines."""
        await asyncio.gather(*(engine.close() for engine in self))
