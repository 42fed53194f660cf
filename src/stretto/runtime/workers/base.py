"""What the orchestrator asks of a worker, and what all engine handles share.

An engine handle turns requests into futures. Requests made in one turn of the event loop leave together, so that
what an engine sees does not depend on how the loop schedules its tasks. A handle that dies sets ``failed``; its
open requests then fail with the same error.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.data.trajectory import Completion
from stretto.kernel.errors import InvariantError, WorkerError
from stretto.kernel.events import UNLOGGED, EventLog
from stretto.learner.result import Floats, ForwardBackwardResult, OptimResult, StepResult
from stretto.rollout.types import Report, Request, empty_completion

TURNS = 1000  # request ids: trajectory * TURNS + a counter of this trajectory's requests
_UNLOGGED_REQUEST = UNLOGGED * TURNS
_ENOUGH = 128
"""Requests that leave even though more are coming."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine's answer to ``load``: the version that it now holds and when its pause began."""

    version: int
    start: float


class LearnerHandle(Protocol):
    """The learner as the loop holds it."""

    async def start(self) -> None: ...

    async def step(self, columns: Columns, slot: Coroutine[Any, Any, int]) -> StepResult:
        """Train on a batch; on success the new weights will be staged in ``slot``, which needn't be free before."""
        ...

    async def forward_backward(
        self, columns: Columns, totals: Totals | None = None
    ) -> ForwardBackwardResult[Mapping[str, float]]:
        """Add the gradient of these trajectories to that of the optimizer step whose denominators ``totals`` are
        (``learner.turns.totals_of``); None: they are all of it."""
        ...

    async def optim_step(self, lr: float | None = None) -> OptimResult[Mapping[str, float]]:
        """Update with what was accumulated; the weights are the next version then. ``lr`` None: by the schedule."""
        ...

    async def score(self, columns: Columns, version: int | None = None) -> Floats:
        """Log-probability of each policy token of these segments, flat, under the weights of ``version``, or of the
        version that sampled it (None)."""
        ...

    def release(self, before: int) -> None:
        """Versions below ``before`` have ended: nothing of theirs will be scored any more."""
        ...

    async def stage(self, slot: int) -> Any:
        """Stage the current weights."""
        ...

    async def save(self, directory: Path) -> None: ...

    async def load(self, directory: Path) -> int:
        """Restore; returns the version."""
        ...

    async def save_model(self, directory: Path) -> None:
        """Write the policy in Transformers format."""
        ...

    async def close(self) -> None: ...


class BusyLog:
    """Joins a worker's bursts of computing into ``Busy`` events of at most ``span_s`` each."""

    def __init__(self, log: EventLog, worker: str, span_s: float = 1.0, gap_s: float = 0.02) -> None:
        self._log, self._worker, self._span_s, self._gap_s = log, worker, span_s, gap_s
        self._start: float | None = None
        self._end = 0.0
        self._tokens = self._prefill = self._steps = 0

    def add(self, start: float, end: float, report: Report) -> None:
        """The worker computed from ``start`` to ``end`` (run clock)."""
        if self._start is not None and (start - self._end > self._gap_s or end - self._start > self._span_s):
            self.flush()
        if self._start is None:
            self._start = start
        self._end = end
        self._tokens += report.decode_tokens
        self._prefill += report.prefill_tokens
        self._steps += report.decode_steps

    def flush(self) -> None:
        """Log what is collected."""
        if self._start is None:
            return
        self._log.emit(
            "Busy",
            worker=self._worker,
            start=round(self._start, 6),
            end=round(self._end, 6),
            tokens=self._tokens,
            prefill=self._prefill,
            rows=round(self._tokens / max(1, self._steps), 3),
        )
        self._start = None
        self._tokens = self._prefill = self._steps = 0


class EngineHandle:
    """Base of all engine handles: futures per request, coalesced sending, delivery."""

    __slots__ = (
        "_futures",
        "_needless",
        "_outbox",
        "batching_hint",
        "busy",
        "failed",
        "held",
        "keeps",
        "log",
        "name",
        "on_restart",
        "version",
    )  # fmt: skip

    def __init__(self, name: str, log: EventLog) -> None:
        self.name = name
        self.version: int | None = None
        self.keeps = False
        """Does it hold each version until it is freed? Then groups may be promised one."""
        self.held: Counter[int] = Counter()
        """Versions that it holds: how many groups were promised each."""
        self._needless = -1  # older ones than this can't be promised any more
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log = log
        self.busy = BusyLog(log, name)
        self._futures: dict[int, asyncio.Future[Completion]] = {}
        self._outbox: list[Request] = []
        self.on_restart: Callable[[EngineHandle], None] | None = None
        """Called when a new process is up and needs weights."""
        self.batching_hint: Callable[[], bool] = lambda: False
        """True while further requests are about to be made."""

    @property
    def running(self) -> int:
        """Requests sent and not answered."""
        return len(self._futures)

    @property
    def restarting(self) -> bool:
        """Its process died and a new one comes up."""
        return False

    def submit(self, request: Request) -> asyncio.Future[Completion]:
        """Ask for a completion. Finish ``aborted`` means: go on with a new request that holds the partial."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Completion] = loop.create_future()
        self._futures[request.id] = future
        if not self._outbox:
            loop.call_soon(self._flush)
        self._outbox.append(request)
        return future

    def promise(self, version: int) -> None:
        """A group will sample from this version alone: hold it until ``redeem`` was called as often, also while nobody
        asks for it. Versions that come meanwhile, or are on their way, change nothing."""
        if version not in self.held or not self.keeps:
            raise InvariantError(
                f"{self.name} can't promise version {version}: it holds {sorted(self.held)}"
                + ("" if self.keeps else " and keeps none of them (control.version_pinning.name = 'latest')")
            )
        self.held[version] += 1

    def redeem(self, version: int) -> None:
        """A group that was promised this version is over."""
        self.held[version] -= 1
        self._free_unused()

    def acknowledged(self, version: int) -> None:
        """Everybody knows that it holds ``version`` now: nobody will ask for an older one for new groups."""
        self._needless = version
        self._free_unused()

    def _free_unused(self) -> None:
        unused = [version for version, groups in self.held.items() if not groups and version < self._needless]
        for version in unused:
            del self.held[version]
        if unused and self.keeps:
            self.free(unused)

    def deliver(self, finished: Sequence[tuple[int, Completion]]) -> None:
        """Answer requests; answers to requests that were given up are dropped here."""
        for request, completion in finished:
            future = self._futures.pop(request, None)
            if future is not None and not future.done():
                future.set_result(completion)

    def first_tokens(self, requests: Iterable[int]) -> None:
        """Log that these requests have their first token; before their answers are delivered."""
        futures, trajectories, numbers = self._futures, [], []
        for request in requests:
            future = futures.get(request)
            if future is not None and request < _UNLOGGED_REQUEST and not future.done():
                trajectories.append(request // TURNS)
                numbers.append(request % TURNS)
        if trajectories:
            log = self.log
            log.write({"e": "FirstToken", "t": log.now(), "engine": self.name, "traj": trajectories,
                       "request": numbers})  # fmt: skip

    def cancel(self, request: int) -> None:
        """Nobody waits for this request any more."""
        if self._futures.pop(request, None) is not None:
            self.abort([request])

    def flush_busy(self) -> None:
        """Log what it has computed so far."""
        self.busy.flush()

    def fail(self, error: BaseException) -> None:
        """The engine is gone: everything that waits for it learns why."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # marks it as seen; the orchestrator watches it too
        for future in self._futures.values():
            if not future.done():
                future.set_exception(error)
                future.exception()
        self._futures.clear()

    def on_weights_loaded(self, version: int) -> None:
        """The engine holds ``version`` now; requests that waited for its first one leave."""
        self.version = version
        self.held[version] += 0
        self._flush()

    def requeue(self) -> None:
        """The engine lost everything: open requests end as aborted without tokens, so that each goes on. But groups
        that were promised a version can't, and that ends the run."""
        self.version = None
        if lost := sorted(v for v, groups in self.held.items() if groups):
            return self.fail(WorkerError(
                f"{self.name} died, and with it version {', '.join(map(str, lost))}, to which groups are pinned: they "
                "can't go on. Resume the run (they start over), or let running groups move to newer weights "
                "(control.version_pinning.name = 'latest', control.in_flight other than 'pin')"
            ))  # fmt: skip
        self.held.clear()
        self.deliver([(request, empty_completion()) for request in list(self._futures)])

    def _flush(self) -> None:
        if self.version is None:
            return
        if len(self._outbox) < _ENOUGH and self.batching_hint():  # one large batch decodes faster than many small ones
            asyncio.get_running_loop().call_soon(self._flush)
            return
        requests = [r for r in self._outbox if r.id in self._futures]
        self._outbox = []
        if requests:
            self.add(requests)

    # what each kind does in its own way

    async def start(self) -> None:
        """Bring it up; returns when it can load weights."""

    def add(self, requests: Sequence[Request]) -> None:
        """Hand requests over."""
        raise NotImplementedError

    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests whose answers nobody needs."""
        raise NotImplementedError

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions any more."""
        raise NotImplementedError

    async def load(self, staged: Any, slot: int, in_flight: str) -> Loaded:
        """Swap weights between two steps."""
        raise NotImplementedError

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far, by request id. ``settle``: between two advances, once everything
        that finished before is delivered. ``pause`` (needs ``settle``): it samples nothing more until it loads
        weights."""
        raise NotImplementedError

    async def distance(self) -> float:
        """Relative L2 distance of its weights to the first ones."""
        raise NotImplementedError

    async def close(self) -> None:
        """End it and leave nothing behind."""
        raise NotImplementedError


Progress = Callable[[str], None]
"""Called with a line about a start-up phase."""
