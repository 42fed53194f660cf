"""The handle of a simulated engine: one timer for its next completion, nothing in between.

A timer that turns out to be early (requests that came meanwhile slow the others down) stays and is set again when it
is due: that costs less than a new one for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.clock import Sleep
from stretto.rollout.capabilities import MODELLED
from stretto.rollout.types import ExportedRequest, Occupancy, Request
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.simulation.costs import CostModel
from stretto.simulation.engine import SimulatedEngine
from stretto.weights.staged import StagedWeights


class SimulatedEngineHandle(EngineHandle):
    """An engine in simulation: exact event times, no compute. A request starts when it is made, in the order of asking:
    there is nothing to send."""

    at_once = True
    capabilities = MODELLED

    def __init__(self, name: str, engine: SimulatedEngine, costs: CostModel) -> None:
        super().__init__(name)
        self._engine, self._costs = engine, costs
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = self._armed = -1.0  # when the next row ends; for when the timer is set
        self._since = 0.0
        self._draining: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """It is there."""

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        engine, now = self._engine, self._loop.time()
        engine.add(now, requests)
        if engine.first:
            self._say_first()
        self._go_on(now)

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests."""
        self._engine.abort(list(ids))
        self._go_on(self._loop.time())

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions."""
        self._engine.free(versions)

    def pause(self, ids: Sequence[int]) -> None:
        """Keep these requests without advancing them."""
        now = self._loop.time()
        self._engine.pause(now, ids)
        self._stopped(now)

    def resume(self, ids: Sequence[int]) -> None:
        """Let paused requests go on."""
        now = self._loop.time()
        self._engine.resume(now, ids)
        self._go_on(now)

    async def export(self, id: int) -> ExportedRequest:
        """Take a running request out."""
        now = self._loop.time()
        state = self._engine.export(now, id)
        self._stopped(now)
        return state

    async def import_(self, state: ExportedRequest) -> None:
        """Go on with a request of another engine, once its cache has come."""
        if state.keys is not None and (travels_s := self._costs.migrate_s(state)) > 0:
            await Sleep(self._loop, travels_s)
        now = self._loop.time()
        self._engine.import_(now, state)
        self._go_on(now)

    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Pause for ``simulation.publish_s``, then go on with the new version."""
        version = weights.version.number
        if in_flight == InFlight.DRAIN and self._engine.running:
            self._draining = self._loop.create_future()
            await self._draining
            self._draining = None
        start = self._loop.time()
        aborted = self._engine.load(start, version, self._costs.publish_s)
        self._say_first()
        self._reschedule()
        pause_s = self._costs.publish_s
        await (Sleep(self._loop, pause_s) if pause_s > 0 else asyncio.sleep(0))
        self.sink.finished(aborted)
        self.sink.loaded(version)
        now = self._loop.time()
        self._go_on(now)
        return Loaded(version, now - start)

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far."""
        partial_completions = self._engine.snapshot(self._loop.time())
        self._say_first()
        return partial_completions

    async def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _stopped(self, now: float) -> None:
        """Rows stopped in the midst of their work."""
        self._say_first()
        if not self._engine.rows and self._engine.decoded:
            self._tell_busy(now)
        self._go_on(now)

    def _say_first(self) -> None:
        """Log first tokens: at the first event of this engine after they are there, so that they cost no timer."""
        first, self._engine.first = self._engine.first, []
        self.sink.first_tokens(first)

    def _go_on(self, now: float) -> None:
        engine = self._engine
        if self._draining is None:
            if not engine.rows:
                self._since = now
            if engine.waiting:
                engine.start_waiting()
        elif not engine.running and not self._draining.done():  # the last row ended, or was given up
            self._draining.set_result(None)
        self._reschedule()

    def _reschedule(self) -> None:
        at, timer = self._engine.next_finish(), self._timer
        if timer is not None:
            if at is not None and at >= self._armed:
                self._at = at
                return
            timer.cancel()
            self._timer = None
        if at is not None:
            self._at = self._armed = at
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        now, engine = self._loop.time(), self._engine
        if now < self._at:
            self._armed = self._at
            self._timer = self._loop.call_at(self._at, self._tick)
            return
        self._timer = None
        finished = engine.finished(now)
        if engine.first:
            self._say_first()
        self.sink.finished(finished)
        if not engine.rows:
            self._tell_busy(now)
        self._go_on(now)

    def _tell_busy(self, now: float) -> None:
        engine = self._engine
        self.sink.busy(self._since, now, engine.decoded, engine.prefilled, engine.steps,
                       occupancy=Occupancy(len(engine.waiting)), joins=False)  # fmt: skip
        engine.decoded = engine.steps = 0.0
        engine.prefilled = 0
        self._since = now

    def report_busy(self) -> None:
        """Tell what it has computed so far."""
        now = self._loop.time()
        if self._engine.running and now > self._since:
            self._tell_busy(now)
