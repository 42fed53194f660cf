"""Engine and learner in the loop's own process: on the virtual clock with simulated durations, or on the wall clock.

The same passive classes as in worker processes. A driver coroutine advances the engine while it has work; weights
swap and requests stop between two advances only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeVar

from stretto.data.modes import InFlight
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.data.trajectory import Completion
from stretto.kernel.waits import Waits
from stretto.learner.result import Floats, ForwardBackwardResult, OptimResult, StepResult
from stretto.rollout.capabilities import IN_PROCESS
from stretto.rollout.types import Engine, ExportedRequest, Report, Request
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.simulation.costs import CostModel
from stretto.weights.staged import Room, StagedWeights, Staging
from stretto.weights.transport import Stage, Transport

Answer = TypeVar("Answer")


class PassiveLearner(Protocol):
    """What a learner class offers (``learner.learner.Learner``; ``simulation.learner`` for simulation)."""

    version: int

    def step(self, columns: Columns) -> StepResult: ...

    def forward_backward(
        self, rows: Columns, totals: Totals | None = None
    ) -> ForwardBackwardResult[Mapping[str, float]]: ...

    def optim_step(self, lr: float | None = None) -> OptimResult[Mapping[str, float]]: ...

    def score(self, columns: Columns, version: int | None = None) -> Floats: ...

    def release(self, before: int) -> None: ...

    def stage(self, put: Stage) -> StagedWeights: ...

    def save(self, directory: Path) -> None: ...

    def load(self, directory: Path) -> None: ...

    def save_model(self, directory: Path) -> None: ...


class InlineEngine(EngineHandle):
    """Drives a passive engine inside this loop, with weights from ``transport``. ``costs`` None: wall clock, no
    simulated time."""

    capabilities = IN_PROCESS

    def __init__(
        self, name: str, engine: Engine, costs: CostModel | None, decode_steps: int, transport: Transport
    ) -> None:
        super().__init__(name)
        self._engine, self._costs, self._steps, self._transport = engine, costs, decode_steps, transport
        self._work = asyncio.Event()
        self._advancing = asyncio.Lock()
        self._paused = False
        self._loads: list[tuple[asyncio.Future[Loaded], StagedWeights, InFlight]] = []
        self._driver = asyncio.get_running_loop().create_task(self._drive(), name=f"{name} driver")

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        self._engine.add(requests)
        self._work.set()

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests."""
        self._engine.abort(ids)

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions."""
        self._engine.free(versions)

    def pause(self, ids: Sequence[int]) -> None:
        """Keep these requests without advancing them."""
        self._engine.pause(ids)

    def resume(self, ids: Sequence[int]) -> None:
        """Let paused requests go on."""
        self._engine.resume(ids)
        self._work.set()

    async def export(self, id: int) -> ExportedRequest:
        """Take a running request out, between two advances."""
        async with self._advancing:
            return self._engine.export(id)

    async def import_(self, state: ExportedRequest) -> None:
        """Go on with a request of another engine, once its cache has come."""
        if self._costs is not None and state.keys is not None:
            await asyncio.sleep(self._costs.migrate_s(state))
        self._engine.import_(state)
        self._work.set()

    async def start(self) -> None:
        """It is there."""

    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Swap weights before the next advance."""
        future: asyncio.Future[Loaded] = asyncio.get_running_loop().create_future()
        self._loads.append((future, weights, in_flight))
        self._work.set()
        return await future

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far; ``settle``: between two advances; ``pause``: the next one comes
        after ``load``."""
        if not settle:
            return self._engine.snapshot()
        async with self._advancing:
            self._paused = self._paused or pause
            return self._engine.snapshot()

    async def distance(self) -> float:
        """Relative L2 distance of its weights to the first ones."""
        return float(self._engine.distance_to_initial())  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Stop the driver."""
        self._driver.cancel()
        await asyncio.gather(self._driver, return_exceptions=True)

    async def _drive(self) -> None:
        try:
            while True:
                if not self._loads and not self._has_work:
                    self.sink.idle()
                    self._work.clear()
                    await self._work.wait()
                if self._loads:
                    await self._swap()
                if self._has_work:
                    await self._advance()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.sink.died(error)

    @property
    def _has_work(self) -> bool:
        return self._engine.has_work and not self._paused

    async def _advance(self) -> None:
        async with self._advancing:
            if self._has_work:  # it may have been paused while this waited
                await self._advance_once()

    async def _advance_once(self) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        report: Report = self._engine.advance(self._steps)
        await asyncio.sleep(self._costs.advance_s(report) if self._costs is not None else 0)
        self.sink.busy(start, loop.time(), report.decode_tokens, report.prefill_tokens, report.decode_steps,
                       occupancy=report.occupancy)  # fmt: skip
        self.sink.first_tokens(report.first)
        self.sink.finished(report.finished)

    async def _swap(self) -> None:
        future, weights, in_flight = self._loads.pop(0)
        version, loop = weights.version.number, asyncio.get_running_loop()
        if in_flight == InFlight.DRAIN:
            self._engine.hold_admission(True)
            while self._engine.running:
                await self._advance()
            self._engine.hold_admission(False)
        start = loop.time()
        aborted = self._engine.load(version, weights.merged(self._transport.fetch(weights)), in_flight)
        self._paused = False
        await asyncio.sleep(self._costs.publish_s if self._costs is not None else 0)
        self.sink.finished(aborted)
        self.sink.loaded(version)
        if not future.done():
            future.set_result(Loaded(version, loop.time() - start))


class InlineLearner:
    """Holds a passive learner in this process. In virtual time a step takes what the cost model says."""

    def __init__(
        self, learner: PassiveLearner, costs: CostModel | None, waits: Waits, step_s: float, transport: Transport
    ) -> None:
        """``step_s``: the deadline of a step; a real one on the wall clock is noticed when it is over."""
        self._learner, self._costs, self._transport = learner, costs, transport
        self._waits, self._step_s = waits, step_s

    async def start(self) -> None:
        """Nothing to bring up."""

    async def step(self, columns: Columns, room: Room) -> tuple[StepResult, Awaitable[Staging] | None]:
        """Train on a batch."""
        with contextlib.closing(room):
            result = await self._waits.wait_with_deadline(
                self._step(columns), "the loop", "learner: a learner step", self._step_s, "step_s", self._costs is None
            )
            await room
        staging: asyncio.Future[Staging] | None = None
        if not result.skipped:  # now: this class may be in its next step when somebody awaits it
            staging = asyncio.get_running_loop().create_future()
            staging.set_result(await self.stage())
        fill_s = result.fill_s if self._costs is None else self._costs.forward_s(result.fill_tokens)
        return replace(result, fill_s=fill_s), staging

    async def _step(self, columns: Columns) -> StepResult:
        result = self._learner.step(columns)
        if self._costs is not None:
            filling_s = self._costs.forward_s(result.fill_tokens)
            await asyncio.sleep(self._costs.step_s(int(columns["length"].sum())) + filling_s)
        else:
            for _ in range(2):  # a timer that came due meanwhile fires after the first
                await asyncio.sleep(0)
        return result

    async def forward_backward(
        self, columns: Columns, totals: Totals | None = None
    ) -> ForwardBackwardResult[Mapping[str, float]]:
        """Accumulate. In virtual time it takes a step's time per token."""

        async def work(costs: CostModel | None) -> ForwardBackwardResult[Mapping[str, float]]:
            result = self._learner.forward_backward(columns, totals)
            if costs is not None:
                tokens_s = costs.forward_backward_s(int(columns["length"].sum()))
                await asyncio.sleep(tokens_s + costs.forward_s(result.fill_tokens))
            return result

        return await self._in_time(work(self._costs), "forward and backward")

    async def optim_step(self, lr: float | None = None) -> OptimResult[Mapping[str, float]]:
        """Update. In virtual time it takes what a step takes beside its tokens."""

        async def work(costs: CostModel | None) -> OptimResult[Mapping[str, float]]:
            result = self._learner.optim_step(lr)
            await asyncio.sleep(0 if costs is None else costs.optim_step_s)
            return result

        return await self._in_time(work(self._costs), "an optimizer step")

    def _in_time(self, work: Coroutine[object, None, Answer], what: str) -> Awaitable[Answer]:
        return self._waits.wait_with_deadline(
            work, "the loop", f"learner: {what}", self._step_s, "step_s", self._costs is None
        )

    async def score(self, columns: Columns, version: int | None = None) -> Floats:
        """Score segments. In virtual time a forward pass over them, beside a step if there is one."""
        scored = self._learner.score(columns, version)
        if self._costs is not None:
            await asyncio.sleep(self._costs.forward_s(int(columns["length"].sum())))
        return scored

    def release(self, before: int) -> None:
        """Older versions have ended."""
        self._learner.release(before)

    async def stage(self) -> Staging:
        """Stage copies of the current weights, which takes no time."""
        return Staging(self._learner.stage(self._transport.stage), 0.0)

    def release_weights(self, staged: StagedWeights) -> None:
        """Nobody will fetch these."""
        self._transport.release(staged.version)

    async def save(self, directory: Path) -> None:
        """Write a checkpoint."""
        self._learner.save(directory)

    async def load(self, directory: Path) -> int:
        """Restore."""
        self._learner.load(directory)
        return self._learner.version

    async def save_model(self, directory: Path) -> None:
        """Write the policy."""
        self._learner.save_model(directory)

    async def close(self) -> None:
        """Nothing to end."""
