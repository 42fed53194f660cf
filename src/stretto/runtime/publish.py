"""Getting new weights to the engines: which engine loads when, and how long a version stays staged.

The learner stages each version with a transport, from which engines fetch it. A version is released once it isn't the
newest any more and no engine loads it; the learner waits before it stages more than ``limit`` of them. An engine that
was busy meanwhile skips to the newest version. Versions are acknowledged by the engines; nothing here assumes that an
engine has what was sent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping

from stretto.config.deadlines import Deadlines
from stretto.control.hooks import Publish
from stretto.control.view import View
from stretto.data.modes import InFlight
from stretto.kernel.clock import VirtualLoop
from stretto.kernel.errors import WorkerError
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits
from stretto.runtime.pooled_engine import PooledEngine
from stretto.weights.staged import StagedWeights, Staging


class Publisher:
    """Loads the newest offer on the engines that the publish rule names. ``limit``: versions that may be staged at
    once. ``published`` is told of each offer when it is staged (what, when that began on the loop's clock),
    ``release`` when nobody will fetch it any more; ``changed`` is called after each staging and each load."""

    def __init__(
        self,
        engines: Mapping[str, PooledEngine],
        rule: Publish,
        view: View,
        log: EventLog,
        waits: Waits,
        deadlines: Deadlines,
        in_flight: InFlight,
        limit: int,
        published: Callable[[StagedWeights, float], None],
        release: Callable[[StagedWeights], None],
        changed: Callable[[], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._engines, self._rule, self._view, self._log = engines, rule, view, log
        self._in_flight, self._limit = in_flight, limit
        self._published, self._release = published, release
        self._changed, self._fatal = changed, fatal
        self._waits, self._warn = waits, not isinstance(asyncio.get_running_loop(), VirtualLoop)
        drains = in_flight == InFlight.DRAIN  # what runs may take to its end before the load begins
        self._load_s = deadlines.publish_s + (deadlines.rollout_s if drains else 0.0)
        self._setting = "publish_s + deadlines.rollout_s" if drains else "publish_s"
        self._newest: StagedWeights | None = None
        self._staged: dict[int, StagedWeights] = {}
        self._loading: dict[str, StagedWeights] = {}
        self._loads: dict[str, asyncio.Task[None]] = {}
        self.stopped = False
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held = False
        self._staging = 0
        self._again: set[str] = set()
        self._alive: set[int] = set()
        self._reading: Counter[int] = Counter()  # how many engines fetch each staged version
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
        self._arrived(done)
        again, self._again = self._again, set()
        for name in again:
            self.reload(self._engines[name])
        self.kick()
        self._changed()

    def first(self, staging: Staging) -> None:
        """The first weights of this run, or of its resumption: every engine loads them, whatever the rule says."""
        self._arrived(staging)
        for name in self._engines:
            self._start(name)

    def _arrived(self, staging: Staging) -> None:
        """Weights are staged: they are the newest, and the ones before may go."""
        staged = staging.staged
        self._published(staged, asyncio.get_running_loop().time() - staging.seconds)
        self._newest = self._staged[staged.version.number] = staged
        self._release_unread(staged.version.number - 1)

    def kick(self) -> None:
        """Start the loads that are due. Not while weights are being staged: the newest ones that are there may have
        been released in favour of the learner's next version."""
        if self._held or self.stopped or self._newest is None or self._staging:
            return
        for name in self._rule.engines(self._view):
            # the rule may ask for a version that is still being staged
            if name not in self._loading and self._engines[name].version != self._newest.version.number:
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
        """The run ends: start no load, and let nobody wait for one, which may wait for long turns to end itself. What
        is read stays staged; a load that comes to its end is logged."""
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

    async def room(self, version: int) -> None:
        """Wait until ``version`` may be staged: until nobody reads the one that is ``limit`` older, or an older one."""
        oldest = version - self._limit
        if self._readers(oldest):
            await self._waits.wait_with_deadline(
                self._unread(oldest), "the learner", lambda: f"room to stage version {version}: "
                f"{', '.join(self._readers(oldest))} loads version {oldest} or an older one "
                f"(weights.staged_versions = {self._limit})", self._load_s, self._setting, self._warn,
            )  # fmt: skip
        self._release_unread(oldest)

    def _readers(self, newest: int) -> list[str]:
        """Who loads this version or an older one."""
        return [name for name, weights in self._loading.items() if weights.version.number <= newest]

    async def _unread(self, newest: int) -> None:
        while self._readers(newest) and not self.stopped:
            await self._any(self._tasks)

    def _release_unread(self, newest: int) -> None:
        """Versions up to this one that nobody reads needn't be staged any longer."""
        for number in sorted(n for n in self._staged if n <= newest and not self._reading[n]):
            self._release(self._staged.pop(number))

    async def _any(self, tasks: set[asyncio.Task[None]]) -> None:
        """Wait until one of these is over, or a stop comes."""
        awaited: set[asyncio.Future[None]] = {*tasks} if self.stopped else {*tasks, self._woken}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)

    def _start(self, name: str) -> None:
        assert self._newest is not None
        self._loading[name] = self._newest
        self._reading[self._newest.version.number] += 1
        self._loads[name] = self._spawn(self._load(name, self._newest), f"load on {name}")

    def _spawn(self, work: Coroutine[object, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        self._spawned.set()
        task.add_done_callback(self._tasks.discard)
        return task

    async def _load(self, name: str, weights: StagedWeights) -> None:
        try:
            loaded = await self._waits.wait_with_deadline(
                self._engines[name].load(weights, self._in_flight), "the weight update",
                f"{name}: loading version {weights.version.number}", self._load_s, self._setting, self._warn,
            )  # fmt: skip
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._read(name)
            expected = self.stopped or (isinstance(error, WorkerError) and self._engines[name].restarting)
            if not expected:
                self._fatal(error)
            return
        self._read(name)
        start = self._log.run_time(asyncio.get_running_loop().time() - loaded.seconds)
        self._log.emit("Loaded", worker=name, version=loaded.version, mode=self._in_flight, start=start)
        self._engines[name].acknowledged(loaded.version)
        self._alive.add(loaded.version)
        if not self._settling:  # once for all engines that load in one turn of the event loop
            self._settling = True
            asyncio.get_running_loop().call_soon(self._after_loads)

    def _read(self, name: str) -> None:
        """This engine loads nothing any more."""
        number = self._loading.pop(name).version.number
        self._reading[number] -= 1
        if not self._reading[number]:
            del self._reading[number]
        if self._newest is not None:
            self._release_unread(self._newest.version.number - 1)

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
        used |= self._reading.keys()
        for version in sorted(self._alive - used):
            self._alive.discard(version)
            self._log.emit("Released", version=version)
