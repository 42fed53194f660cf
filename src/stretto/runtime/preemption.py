"""What ``control.preemption`` decides, done: running trajectories rest, go on, or move to another engine.

A decision is logged, and thereby seen by all rules, when it is made; what it takes (asking an engine for a request and
its cache, handing them over) follows, in order for each trajectory. Environments notice nothing: a trajectory that
rests between two requests waits before the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from stretto.control.actions import Preempt, PreemptionAction
from stretto.control.view import View
from stretto.data.modes import InFlight
from stretto.kernel.errors import InvariantError, did_you_mean
from stretto.kernel.events import Event, EventLog
from stretto.rollout.types import empty_completion
from stretto.runtime.client import NO_REQUEST, RolloutClient
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.pooled_engine import PooledEngine

OCCASIONS = ("FirstToken", "TurnDone", "EnvStarted", "EnvDone", "Busy")
"""Events that give a rule which looks at single trajectories something to decide, beside those that wake all rules."""


class Wakes:
    """A listener that calls ``wake`` on these events."""

    def __init__(self, wake: Callable[[], None], names: Sequence[str]) -> None:
        self.handlers: dict[str, Callable[[Event], None]] = {name: lambda event: wake() for name in names}

    def __call__(self, event: Event) -> None:
        """One event."""
        if (handler := self.handlers.get(event["e"])) is not None:
            handler(event)


class Preemption:
    """``client_of(trajectory)``: of a trajectory that runs, else None; ``fatal(error)`` ends the run."""

    def __init__(
        self, engines: EnginePool, log: EventLog, view: View, in_flight: InFlight,
        client_of: Callable[[int], RolloutClient | None], fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._engines, self._log, self._view, self._in_flight = engines, log, view, in_flight
        self._client_of, self._fatal = client_of, fatal
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[int, asyncio.Task[None]] = {}
        """The last thing that is being done with each trajectory."""

    def act(self, actions: Sequence[PreemptionAction]) -> None:
        """Do these, in order. Raises ``InvariantError`` for what can't be: the rule sees in the view why."""
        for action in actions:
            client = self._client_of(action.trajectory)
            if client is None:
                raise InvariantError(f"control.preemption: {action.verb} of trajectory {action.trajectory}, which "
                                     "doesn't run")  # fmt: skip
            self._check_rest(client, action)
            here = client.engine
            to = here if action.engine is None else self._target(client, action.engine)
            if to is None:
                continue
            self._log.emit("Preempted", traj=action.trajectory, verb=action.verb, engine=to.name)
            if to is not here:
                self._settle_in(client, to)
            match action.verb:
                case Preempt.PAUSE:
                    client.gate = self._loop.create_future()
                    self._then(client, self._pause(client))
                case Preempt.EVICT:
                    client.gate = self._loop.create_future()
                    self._then(client, self._evict(client))
                case Preempt.RESUME:
                    gate, client.gate = client.gate, None
                    assert gate is not None
                    gate.set_result(None)
                    self._then(client, self._resume(client, None if to is here else to))
                case Preempt.MIGRATE:
                    self._then(client, self._move(client, to))

    def _target(self, client: RolloutClient, name: str) -> PooledEngine | None:
        """The engine of this name, if the trajectory can go on there. None: its own engine has loaded newer weights
        just now, which the rule couldn't know; it is asked again."""
        found, here, least = self._engines.by_name.get(name), client.engine, client.newest
        if found is here:
            raise InvariantError(f"control.preemption moves trajectory {client.trajectory} to {name!r}, where it is")
        if self._asked(client)[1] is not None and here.version is not None:
            least = max(least, here.version)  # it may have sampled with these
        if client.pin is not None and found is not None and client.pin in found.held:
            return found
        if client.pin is None and found is not None and found.version is not None and found.version >= least:
            if self._in_flight != InFlight.DRAIN or found.version == here.version:
                return found
            why = f"it holds version {found.version}, and control.in_flight = 'drain' lets no answer see two versions"
        elif found is None:
            why = did_you_mean(name, self._engines.by_name)
        elif client.pin is not None:
            why = f"it holds {sorted(found.held)}, and the trajectory is pinned to version {client.pin}"
        elif (known := self._known(here, found)) is not None and known >= client.newest:
            return None
        else:
            why = f"it holds version {found.version}, and the trajectory is at version {least}"
        raise InvariantError(f"control.preemption can't move trajectory {client.trajectory} to {name!r}: {why}")

    def _known(self, here: PooledEngine, there: PooledEngine) -> int | None:
        """What the rule sees that ``there`` holds, if it sees nothing newer ``here``."""
        seen, other = (self._view.engines[engine.name].version for engine in (there, here))
        return seen if seen is not None and (other is None or seen >= other) else None

    def _check_rest(self, client: RolloutClient, action: PreemptionAction) -> None:
        rests = client.gate is not None
        if rests != (action.verb == Preempt.RESUME):
            state = "rests" if rests else "runs"
            raise InvariantError(f"control.preemption: {action.verb} of trajectory {action.trajectory}, which {state}")

    def _settle_in(self, client: RolloutClient, to: PooledEngine) -> None:
        """It belongs there now, and the version that it is pinned to is held there for it."""
        leave(client)
        if client.pin is not None:
            to.promise(client.pin)
            client.guest = to
        client.engine = to

    def _then(self, client: RolloutClient, work: Coroutine[Any, Any, None]) -> None:
        """Do this once all that came before for this trajectory is done."""
        id, before = client.trajectory, self._under_way.get(client.trajectory)

        async def do() -> None:
            try:
                if before is not None:
                    await before
                await work
            except Exception as error:
                self._fatal(error)
            finally:
                work.close()
                if self._under_way.get(id) is task:
                    del self._under_way[id]

        task = self._under_way[id] = self._loop.create_task(do(), name=f"preemption of trajectory {id}")

    async def _pause(self, client: RolloutClient) -> None:
        request, here = self._asked(client)
        if here is None:
            return
        if here.withdraw(request) is not None:  # no engine has it yet: it waits with its trajectory
            here.finished([(request, empty_completion())])
        else:
            here.handle.pause([request])

    async def _evict(self, client: RolloutClient) -> None:
        request, here = self._asked(client)
        if here is not None:
            await self._engines.evict(request, here)

    async def _resume(self, client: RolloutClient, to: PooledEngine | None) -> None:
        request, here = self._asked(client)
        if to is not None and to is not here:
            await self._move(client, to)
        elif here is not None:
            here.handle.resume([request])

    async def _move(self, client: RolloutClient, to: PooledEngine) -> None:
        request, here = self._asked(client)
        if here is None or here is to:
            return
        where = await self._engines.move(request, here, to, self._in_flight)
        if where is not to and client.engine is to:
            self._log.emit("Placed", traj=client.trajectory, engine=where.name)
            client.engine = where

    def _asked(self, client: RolloutClient) -> tuple[int, PooledEngine | None]:
        """The request that runs for this trajectory, and the engine that has it; None: none has any."""
        request = NO_REQUEST if client.current is None else client.current[0]
        return request, next((engine for engine in self._engines if request in engine.open), None)

    async def close(self) -> None:
        """Stop what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def owing(client: RolloutClient) -> str:
    """For what a trajectory waits."""
    if client.gate is not None:
        return "control.preemption, which lets it rest"
    return client.engine.name if client.current is not None else "its environment"


def leave(client: RolloutClient) -> None:
    """It no longer needs the version that an engine other than its group's promised to hold for it."""
    guest, client.guest = client.guest, None
    if guest is not None and client.pin is not None and not guest.failed.done():
        guest.redeem(client.pin)
