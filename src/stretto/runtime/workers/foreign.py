"""A handle of a kind from outside, as the loop holds it: each of its answers has a deadline."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from stretto.config.deadlines import Deadlines
from stretto.data.trajectory import Completion
from stretto.kernel.waits import Waits
from stretto.rollout.types import ExportedRequest, Request
from stretto.runtime.workers.base import EngineHandle, EngineSink, Loaded
from stretto.weights.staged import StagedWeights

T = TypeVar("T")


class ForeignEngine(EngineHandle):
    """``inner``, with the run's deadlines: a wait that passes its own ends the run by the engine's name."""

    def __init__(self, inner: EngineHandle, waits: Waits, deadlines: Deadlines) -> None:
        super().__init__(inner.name)
        self._inner, self._waits, self._deadlines = inner, waits, deadlines
        self.capabilities = inner.capabilities

    @property
    def sink(self) -> EngineSink:  # type: ignore[override]
        """Whom the engine tells."""
        return self._inner.sink

    @sink.setter
    def sink(self, sink: EngineSink) -> None:
        self._inner.sink = sink

    async def start(self) -> None:
        """Bring it up."""
        await self._in_time(self._inner.start(), "coming up", "startup_s")

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        self._inner.add(requests)

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests."""
        self._inner.abort(ids)

    async def load(self, weights: StagedWeights, in_flight: str) -> Loaded:
        """Swap weights; whoever publishes them has the deadline."""
        return await self._inner.load(weights, in_flight)

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far."""
        return await self._in_time(self._inner.snapshot(settle=settle, pause=pause), "its partial rollouts")

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions."""
        self._inner.free(versions)

    async def export(self, id: int) -> ExportedRequest:
        """Take a running request out."""
        return await self._in_time(self._inner.export(id), f"request {id}")

    async def import_(self, state: ExportedRequest) -> None:
        """Go on with a request of another engine."""
        await self._in_time(self._inner.import_(state), f"taking over request {state.request.id}")

    def pause(self, ids: Sequence[int]) -> None:
        """Keep these requests without advancing them."""
        self._inner.pause(ids)

    def resume(self, ids: Sequence[int]) -> None:
        """Let paused requests go on."""
        self._inner.resume(ids)

    async def distance(self) -> float:
        """Relative L2 distance of its weights to the first ones."""
        return await self._in_time(self._inner.distance(), "its distance")

    def report_busy(self) -> None:
        """Tell what it has computed so far."""
        self._inner.report_busy()

    async def close(self) -> None:
        """End it; one that doesn't end in time is left alone."""
        await self._in_time(self._inner.close(), "its end", "shutdown_s")

    def _in_time(self, work: Coroutine[Any, Any, T], what: str, setting: str = "publish_s") -> Any:
        seconds = getattr(self._deadlines, setting)
        return self._waits.wait_with_deadline(work, "the loop", f"{self.name}: {what}", seconds, setting)
