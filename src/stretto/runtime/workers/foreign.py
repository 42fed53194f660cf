"""A handle of a kind from outside, as the loop holds it: each of its answers has a deadline, and what it needn't tell
of its work is filled in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from typing import TypeVar

from stretto.config.deadlines import Deadlines
from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.components import said_where
from stretto.kernel.errors import StrettoError, WorkerError
from stretto.kernel.waits import Waits
from stretto.rollout.types import ExportedRequest, Occupancy, Request
from stretto.runtime.workers.base import UNTOLD, EngineHandle, EngineSink, Loaded
from stretto.weights.staged import StagedWeights

T = TypeVar("T")


class FillingSink:
    """What an engine tells, and what it leaves out: that a request which ends has had its first token, and that it was
    busy while it had requests. Of that it tells nothing for good once it has told something itself."""

    def __init__(self, sink: EngineSink, max_num_seqs: int) -> None:
        self._sink, self._max_num_seqs = sink, max_num_seqs
        self._loop = asyncio.get_running_loop()
        self._open: set[int] = set()
        self._begun: set[int] = set()
        self._since = 0.0
        self._tells_busy = False

    def added(self, ids: Iterable[int]) -> None:
        """These were handed over."""
        if not self._open:
            self._since = self._loop.time()
        self._open.update(ids)

    def ended(self, ids: Iterable[int]) -> None:
        """These are over."""
        self._open.difference_update(ids)
        self._begun.difference_update(ids)

    def first_tokens(self, requests: Iterable[int]) -> None:
        """As ``EngineSink``, like what follows."""
        begun = list(requests)
        self._begun.update(begun)
        self._sink.first_tokens(begun)

    def finished(self, completions: Sequence[tuple[int, Completion]]) -> None:
        lengths = {id: len(completion.tokens) for id, completion in completions}
        if fresh := [id for id, length in lengths.items() if length and id not in self._begun]:
            self._sink.first_tokens(fresh)
        if not self._tells_busy and any(lengths.values()):
            now, tokens = self._loop.time(), sum(lengths.values())
            steps = max(max(lengths.values()), tokens / self._max_num_seqs)
            self._sink.busy(self._since, now, tokens, 0, steps)
            self._since = now
        self.ended(lengths)
        self._sink.finished(completions)

    def busy(
        self,
        start: float,
        end: float,
        tokens: float,
        prefill: int,
        steps: float,
        *,
        occupancy: Occupancy = UNTOLD,
        joins: bool = True,
    ) -> None:
        self._tells_busy = True
        self._sink.busy(start, end, tokens, prefill, steps, occupancy=occupancy, joins=joins)

    def idle(self) -> None:
        self._sink.idle()

    def loaded(self, version: int) -> None:
        self._sink.loaded(version)

    def died(self, error: BaseException, *, returns: bool = False) -> bool:
        self.ended(list(self._open))
        return self._sink.died(error, returns=returns)

    def up(self) -> None:
        self._sink.up()


class ForeignEngine(EngineHandle):
    """``inner``, with the run's deadlines. A wait that passes its own ends the run by the engine's name, and so does
    whatever it raises."""

    def __init__(self, inner: EngineHandle, waits: Waits, deadlines: Deadlines, max_num_seqs: int) -> None:
        super().__init__(inner.name)
        self._inner, self._waits, self._deadlines = inner, waits, deadlines
        self._max_num_seqs = max_num_seqs
        self.capabilities, self.at_once = inner.capabilities, inner.at_once

    def join(self, sink: EngineSink) -> None:
        """Whom the engine tells, from now on."""
        self._sink = self._inner.sink = FillingSink(sink, self._max_num_seqs)

    async def start(self) -> None:
        """Bring it up."""
        await self._in_time(self._inner.start(), "coming up", "startup_s")

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        self._sink.added(request.id for request in requests)
        self._inner.add(requests)

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests."""
        self._sink.ended(ids)
        self._inner.abort(ids)

    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Swap weights; whoever publishes them has the deadline."""
        return await self._named(self._inner.load(weights, in_flight), "loading weights")

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

    async def _in_time(self, work: Awaitable[T], what: str, setting: str = "publish_s") -> T:
        seconds: float = getattr(self._deadlines, setting)
        named = self._named(work, what)
        return await self._waits.wait_with_deadline(named, "the loop", f"{self.name}: {what}", seconds, setting)

    async def _named(self, work: Awaitable[T], what: str) -> T:
        try:
            return await work
        except StrettoError:
            raise
        except Exception as error:
            raise WorkerError(f"{self.name}: {what} failed: {said_where(error)}") from error
