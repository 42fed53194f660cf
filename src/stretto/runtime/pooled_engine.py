"""One engine as the pool holds it: its open requests, what it is about to be sent, the versions that it was promised to
hold. It hears from the engine's handle (``workers.base.EngineSink``)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stretto.data.identity import Role
from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.errors import InvariantError, WorkerError
from stretto.kernel.events import EventLog
from stretto.rollout.types import Occupancy, Request, empty_completion
from stretto.runtime.workers.base import UNTOLD, EngineHandle, Loaded
from stretto.weights.staged import StagedWeights

if TYPE_CHECKING:
    from stretto.runtime.engine_pool import EnginePool

_ENOUGH = 128
"""Requests that leave even though more are coming."""
Open = tuple["asyncio.Future[Completion]", int, int | None]
"""Who waits for an answer, the trajectory, and the request's number in it; None: the log says nothing of it."""


class BusyLog:
    """Joins an engine's bursts of computing into ``Busy`` events of at most ``span_s`` each."""

    def __init__(self, log: EventLog, worker: str, span_s: float = 1.0, gap_s: float = 0.02) -> None:
        self._log, self._worker, self._span_s, self._gap_s = log, worker, span_s, gap_s
        self._start: float | None = None
        self._end = self._tokens = self._steps = 0.0
        self._prefill = 0
        self._occupancy = UNTOLD

    def add(self, start: float, end: float, tokens: float, prefill: int, steps: float, occupancy: Occupancy) -> None:
        """It computed from ``start`` to ``end`` (run clock): so many ``tokens`` in so many decode ``steps``, and
        ``prefill`` tokens of prompts. ``occupancy``: at the end."""
        if self._start is not None and (start - self._end > self._gap_s or end - self._start > self._span_s):
            self.flush()
        if self._start is None:
            self._start = start
        self._end, self._occupancy = end, occupancy
        self._tokens += tokens
        self._prefill += prefill
        self._steps += steps

    def flush(self) -> None:
        """Log what is collected."""
        if self._start is None:
            return
        rows = self._tokens / max(1, self._steps)
        self.write(self._start, self._end, self._tokens, self._prefill, rows, self._occupancy)
        self._start = None
        self._end = self._tokens = self._steps = 0.0
        self._prefill = 0

    def write(self, start: float, end: float, tokens: float, prefill: int, rows: float, occupancy: Occupancy) -> None:
        """Log a burst by itself; ``rows``: the mean number that decoded together."""
        log = self._log
        event = {"e": "Busy", "t": log.now(), "worker": self._worker, "start": start, "end": end,
                 "tokens": round(tokens), "prefill": prefill, "rows": round(rows, 3)}  # fmt: skip
        for name in ("waiting", "kv_tokens", "preempted"):
            if (told := getattr(occupancy, name)) is not None:
                event[name] = told
        log.write(event)


class PooledEngine:
    """An engine of the pool. ``keeps``: does it hold each version until it is freed? Then groups may be promised one.

    If it dies for good, ``failed`` is set and its open requests fail with the same error.
    """

    __slots__ = (
        "_busy",
        "_log",
        "_needless",
        "_outbox",
        "at_once",
        "failed",
        "handle",
        "held",
        "keeps",
        "name",
        "open",
        "pool",
        "restarting",
        "role",
        "version",
    )  # fmt: skip

    def __init__(self, pool: EnginePool, handle: EngineHandle, log: EventLog, keeps: bool) -> None:
        self.pool, self.handle, self.name, self.keeps, self._log = pool, handle, handle.name, keeps, log
        self.at_once = handle.at_once
        self.role = Role.ENGINE
        """What it is for, alive or not: it comes up as that."""
        self.version: int | None = None
        """That it serves; None before its first one, and while it comes up anew."""
        self.held: Counter[int] = Counter()
        """Versions that it holds: how many groups were promised each."""
        self._needless = -1  # older ones than this can't be promised any more
        self.failed: asyncio.Future[None] = pool.loop.create_future()
        self.restarting = False
        """Did it die, and serve nothing since?"""
        self.open: dict[int, Open] = {}
        """Requests that aren't answered, by id."""
        self._outbox: list[Request] = []
        self._busy = BusyLog(log, handle.name)
        handle.join(self)

    # requests

    def queue(self, request: Request) -> None:
        """Send this with what else comes in this turn of the event loop."""
        if not self._outbox:
            self.pool.loop.call_soon(self._flush)
        self._outbox.append(request)

    def _flush(self) -> None:
        if self.version is None:
            return
        pool = self.pool
        if len(self._outbox) < _ENOUGH and pool.batching_hint():  # one large batch decodes faster than many small ones
            pool.loop.call_soon(self._flush)
            return
        requests = [r for r in self._outbox if r.id in self.open]
        self._outbox = []
        if requests:
            self.handle.add(requests)

    def withdraw(self, request: int) -> Request | None:
        """Don't send this one, if it was not sent yet; returns it then."""
        found = next((r for r in self._outbox if r.id == request), None)
        if found is not None:
            self._outbox.remove(found)
        return found

    # versions

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
            self.handle.free(unused)

    # what its handle tells

    def up(self) -> None:
        """It can load weights now, for the first time or again."""
        self._log.emit("WorkerUp", worker=self.name, role=self.role)
        if self.restarting and self.pool.on_return is not None:
            self.pool.on_return(self)

    def loaded(self, version: int) -> None:
        """It serves ``version`` now; requests that waited for its first one leave."""
        self.version, self.restarting = version, False
        self.held[version] += 0
        self._flush()

    def finished(self, completions: Sequence[tuple[int, Completion]]) -> None:
        """Answer requests; answers to requests that were given up are dropped here."""
        open_ = self.open
        for request, completion in completions:
            entry = open_.pop(request, None)
            if entry is not None and not entry[0].done():
                entry[0].set_result(completion)

    def first_tokens(self, requests: Iterable[int]) -> None:
        """Log that these requests have their first token; before their answers are delivered."""
        open_, trajectories, numbers = self.open, [], []
        for request in requests:
            entry = open_.get(request)
            if entry is not None and entry[2] is not None and not entry[0].done():
                trajectories.append(entry[1])
                numbers.append(entry[2])
        if trajectories:
            log = self._log
            log.write({"e": "FirstToken", "t": log.now(), "engine": self.name, "traj": trajectories,
                       "request": numbers})  # fmt: skip

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
        """It computed from ``start`` to ``end`` on the event loop's clock: ``tokens`` in ``steps`` decode steps, and
        ``prefill`` tokens of prompts. ``occupancy``: at the end. ``joins``: with what comes at once before and
        after."""
        start, end = self._log.run_time(start), self._log.run_time(end)
        if joins:
            self._busy.add(start, end, tokens, prefill, steps, occupancy)
        else:
            self._busy.write(start, end, tokens, prefill, tokens / steps if steps else 0.0, occupancy)

    def idle(self) -> None:
        """Log what it computed."""
        self._busy.flush()

    def died(self, error: BaseException, *, returns: bool = False) -> bool:
        """It is gone, with all that it held. ``returns``: a new one will come up, and its requests go on. False if that
        is no use: the run ends."""
        if not self.failed.done():
            with contextlib.suppress(OSError):  # a full disk, say: whoever waits must learn of it all the same
                reason = (str(error) or type(error).__name__).splitlines()[0]
                self._log.emit("WorkerDown", worker=self.name, role=self.role, reason=reason)
        if returns:
            self.version = None
            if lost := sorted(v for v, groups in self.held.items() if groups):
                error = self._lost(lost)
            else:
                self.restarting = True
                self.held.clear()
                between = self.pool.between  # what was on its way here isn't lost
                self.finished([(request, between.get(request) or empty_completion()) for request in list(self.open)])
                return True
        self._fail(error)
        return False

    def _lost(self, versions: Sequence[int]) -> WorkerError:
        """Groups that were promised a version can't go on under another one."""
        return WorkerError(
            f"{self.name} died, and with it version {', '.join(map(str, versions))}, to which groups are pinned: they "
            "can't go on. Resume the run (they start over), or let running groups move to newer weights "
            "(control.version_pinning.name = 'latest', control.in_flight other than 'pin')"
        )

    def _fail(self, error: BaseException) -> None:
        """Everything that waits for it learns why."""
        if not self.failed.done():
            self.failed.set_exception(error)
            self.failed.exception()  # marks it as seen; the orchestrator watches it too
        for future, _, _ in self.open.values():
            if not future.done():
                future.set_exception(error)
                future.exception()
        self.open.clear()

    # what the loop asks of its handle

    async def start(self) -> None:
        """Bring it up; returns when it can load weights."""
        await self.handle.start()
        self.up()

    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Swap weights between two steps."""
        loaded = await self.handle.load(weights, in_flight)
        if self.version != loaded.version:  # a handle may tell so itself, before anything else happens
            self.loaded(loaded.version)
        return loaded

    def flush_busy(self) -> None:
        """Log what it has computed so far."""
        self.handle.report_busy()
        self._busy.flush()

    async def close(self) -> None:
        """End it and leave nothing behind."""
        self._busy.flush()
        await self.handle.close()
