"""The handle of a modelled engine: one timer for its next completion, nothing in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from stretto.cluster.costs import Costs
from stretto.cluster.engine import ModelledEngine
from stretto.rollout.types import Request
from stretto.runtime.events import EventLog
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.trajectory import Completion


class ModelledEngineHandle(EngineHandle):
    """An engine in simulation: exact event times, no compute."""

    def __init__(self, name: str, engine: ModelledEngine, log: EventLog, costs: Costs, in_flight: str) -> None:
        super().__init__(name, log)
        self._engine, self._costs, self._in_flight = engine, costs, in_flight
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = -1.0
        self._since = 0.0
        self._draining: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """It is there."""
        self.log.emit("WorkerUp", worker=self.name)

    def submit(self, request: Request) -> asyncio.Future[Completion]:
        """Ask for a completion; it starts now, in the order of asking: there is nothing to send."""
        if self.version is None:
            return super().submit(request)
        future: asyncio.Future[Completion] = self._loop.create_future()
        self._futures[request.id] = future
        self.add((request,))
        return future

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        self._engine.add(self._loop.time(), requests)
        self._go_on()

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests."""
        self._engine.abort(list(ids))
        self._go_on()

    def release(self, trajectories: Sequence[int]) -> None:
        """Pinned versions cost nothing here."""

    async def load(self, staged: Any, slot: int, in_flight: str) -> Loaded:
        """Pause for ``cluster.publish_s``, then go on with the new version."""
        if in_flight == "drain" and self._engine.running:
            self._draining = self._loop.create_future()
            await self._draining
            self._draining = None
        start = self._loop.time()
        aborted = self._engine.load(start, staged[0], self._costs.publish_s)
        self._reschedule()
        await asyncio.sleep(self._costs.publish_s)
        self.deliver(aborted)
        self.opened(staged[0])
        self._go_on()
        return Loaded(staged[0], self.log.run_time(start))

    async def partials(self) -> dict[int, Completion]:
        """What running requests have sampled so far."""
        return self._engine.partials(self._loop.time())

    async def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _go_on(self) -> None:
        if self._draining is None:
            if not self._engine.running:
                self._since = self._loop.time()
            self._engine.start_waiting()
        self._reschedule()

    def _reschedule(self) -> None:
        at = self._engine.next_finish()
        if at is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            return
        if self._timer is not None:
            if at == self._at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        finished = self._engine.finished(now)
        self.deliver(finished)
        if not self._engine.running:
            self._log_busy(now)
        if self._draining is not None and not self._engine.running and not self._draining.done():
            self._draining.set_result(None)
        self._go_on()

    def _log_busy(self, now: float) -> None:
        engine = self._engine
        self.log.emit(
            "Busy",
            worker=self.name,
            start=self.log.run_time(self._since),
            end=self.log.run_time(now),
            tokens=round(engine.decoded),
            prefill=engine.prefilled,
            rows=round(engine.decoded / engine.steps, 3) if engine.steps else 0.0,
        )
        engine.decoded = engine.steps = 0.0
        engine.prefilled = 0
        self._since = now

    def flush_busy(self) -> None:
        """Log what it has computed so far."""
        now = self._loop.time()
        if self._engine.running and now > self._since:
            self._log_busy(now)
