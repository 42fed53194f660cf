"""Getting new weights to the engines: which engine loads when, and when a slot of the weight memory may be reused.

The learner stages version k in slot k mod 2. An engine that loads reads one slot; the learner may write to a slot only
while nobody reads it. An engine that was busy meanwhile skips to the newest version. Versions are acknowledged by the
engines; nothing here assumes that an engine has what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from stretto.config.deadlines import Deadlines
from stretto.control.hooks import Publish
from stretto.control.view import View
from stretto.kernel.clock import VirtualLoop
from stretto.kernel.errors import WorkerError
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits
from stretto.learner.result import Staging
from stretto.runtime.pooled_engine import PooledEngine

SLOTS = 2


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """Weights that are staged: their version, where, and how the engine finds and verifies them."""

    version: int
    slot: int
    staged: Any


class Publisher:
    """Loads the newest offer on the engines that the publish rule names. ``published`` is told of each offer when it
    is staged (version, what, when that began); ``changed`` is called after that and after each load."""

    def __init__(
        self,
        engines: Mapping[str, PooledEngine],
        rule: Publish,
        view: View,
        log: EventLog,
        waits: Waits,
        deadlines: Deadlines,
        in_flight: str,
        published: Callable[[int, Any, float], None],
        changed: Callable[[], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._engines, self._rule, self._view, self._log = engines, rule, view, log
        self._in_flight, self._published = in_flight, published
        self._changed, self._fatal = changed, fatal
        self._waits, self._warn = waits, not isinstance(asyncio.get_running_loop(), VirtualLoop)
        drains = in_flight == "drain"  # what runs may take to its end before the load begins
        self._load_s = deadlines.publish_s + (deadlines.rollout_s if drains else 0.0)
        self._setting = "publish_s + deadlines.rollout_s" if drains else "publish_s"
        self._newest: StagedWeights | None = None
        self._loading: dict[str, StagedWeights] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self.stopped = False
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = False
        self._staging = 0
        self._again: set[str] = set()
        self._alive: set[int] = set()
        self._settling = False
        self._spawned = asyncio.Event()

    @property
    def busy(self) -> bool:
        """Are weights on their way to an engine?"""
        return bool(self._loading or self._staging) or self._settling

    def offer(self, version: int, staging: Awaitable[Staging]) -> None:
        """New weights are being staged: engines may load them once they are."""
        self._staging += 1
        self._spawn(self._announce(version, staging), f"staging of version {version}")

    async def _announce(self, version: int, staging: Awaitable[Staging]) -> None:
        try:
            done = await staging
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._fatal(error)
            return
        finally:
            self._staging -= 1
        self._published(version, done.staged, asyncio.get_running_loop().time() - done.seconds)
        self._newest = StagedWeights(version, version % SLOTS, done.staged)
        again, self._again = self._again, set()
        for name in again:
            self.reload(self._engines[name])
        self.kick()
        self._changed()

    def first(self, version: int, staged: Any) -> None:
        """The first weights of this run, or of its resumption: every engine loads them, whatever the rule says."""
        self._newest = StagedWeights(version, version % SLOTS, staged)
        for name in self._engines:
            self._start(name)

    def kick(self) -> None:
        """Start the loads that are due. Not while weights are being staged: the newest ones that are there may lie in
        the slot which the learner has been promised for its next version."""
        if self._held or self.stopped or self._newest is None or self._staging:
            return
        for name in self._rule.engines(self._view):
            # the rule may ask for a version that is still being staged
            if name not in self._loading and self._engines[name].version != self._newest.version:
                self._start(name)

    def reload(self, engine: PooledEngine) -> None:
        """An engine came up again and needs weights, whatever the rule says."""
        if self.stopped:
            return
        if self._staging:
            self._again.add(engine.name)
        elif self._newest is not None and engine.name not in self._loading:
            self._start(engine.name)

    def hold(self) -> None:
        """Start no load until ``let_go`` (an evaluation runs on one version)."""
        self._held = True

    def let_go(self) -> None:
        """Go on."""
        self._held = False
        self.kick()

    def stop(self) -> None:
        """The run ends: start no load, and let nobody wait for one, which may wait for long turns to end itself. One
        that comes to its end is logged; one whose slot was written to meanwhile fails, and nobody minds."""
        self.stopped = True
        if not self._woken.done():
            self._woken.set_result(None)

    def close(self) -> None:
        """Nothing is loaded any more."""
        self.stopped = True
        for task in self._loads.values():
            task.cancel()

    async def settled(self) -> None:
        """Wait until nothing is staged or loaded."""
        while tasks := self._tasks - (set(self._loads.values()) if self.stopped else set()):
            await self._any(tasks)

    async def serving(self) -> None:
        """Wait until nothing is staged or loaded and an engine holds weights: the only one may be coming up again."""
        await self.settled()
        while all(engine.version is None for engine in self._engines.values()):
            self._spawned.clear()
            await self._spawned.wait()
            await self.settled()

    async def free_slot(self, version: int) -> int:
        """The slot for this version, once nobody reads from it."""
        slot = version % SLOTS
        if self._readers(slot):
            await self._waits.wait_with_deadline(
                self._unread(slot), "the learner", lambda: f"slot {slot} of the weights, from which "
                f"{', '.join(self._readers(slot))} loads", self._load_s, self._setting, self._warn,
            )  # fmt: skip
        return slot

    def _readers(self, slot: int) -> list[str]:
        return [name for name, weights in self._loading.items() if weights.slot == slot]

    async def _unread(self, slot: int) -> None:
        while self._readers(slot) and not self.stopped:
            await self._any(self._tasks)

    async def _any(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait until one of these is over, or a stop comes."""
        awaited: set[asyncio.Future[None]] = {*tasks} if self.stopped else {*tasks, self._woken}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    def _start(self, name: str) -> None:
        assert self._newest is not None
        self._loading[name] = self._newest
        self._loads[name] = self._spawn(self._load(name, self._newest), f"load on {name}")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        self._spawned.set()
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, name: str, weights: StagedWeights) -> None:
        try:
            loading = self._engines[name].load(weights.staged, weights.slot, self._in_flight)
            loaded = await self._waits.wait_with_deadline(
                loading, "the weight update", f"{name}: loading version {weights.version}", self._load_s, self._setting,
                self._warn,
            )  # fmt: skip
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._loading.pop(name, None)
            expected = self.stopped or (isinstance(error, WorkerError) and self._engines[name].restarting)
            if not expected:
                self._fatal(error)
            return
        self._loading.pop(name, None)
        start = self._log.run_time(asyncio.get_running_loop().time() - loaded.seconds)
        self._log.emit("Loaded", worker=name, version=loaded.version, mode=self._in_flight, start=start)
        self._engines[name].acknowledged(loaded.version)
        self._alive.add(loaded.version)
        if not self._settling:  # once for all engines that load in one turn of the event loop
            self._settling = True
            asyncio.get_running_loop().call_soon(self._after_loads)

    def _after_loads(self) -> None:
        self._settling = False
        if self.stopped:
            return
        self._release_old()
        self._changed()
        self.kick()

    def _release_old(self) -> None:
        """Log the versions that no engine holds any more, neither as its newest one nor for pinned groups."""
        used = {version for engine in self._engines.values() for version in engine.held}
        used |= {weights.version for weights in self._loading.values()}
        for version in sorted(self._alive - used):
            self._alive.discard(version)
            self._log.emit("Released", version=version)
