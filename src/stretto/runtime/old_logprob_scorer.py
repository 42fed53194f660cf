"""Old-policy routes that work while rollouts go on: what was sampled under a version is scored when the version ends.

A version ends when the last engine has left it: no further token of it will come. ``interrupt`` makes that moment: all
engines stop, what they made under the version is scored, and only then do they load the next one. ``old_model`` waits
for it and lets a replica score meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from stretto.data.columns import pack
from stretto.data.schema import Columns
from stretto.data.trajectory import Completion, Trajectory
from stretto.kernel.errors import InvariantError
from stretto.pool.old_logprobs import OldLogprobs
from stretto.pool.segments import segment
from stretto.runtime.context import RunContext
from stretto.runtime.dispatcher import Dispatcher
from stretto.runtime.members import Member, unfinished
from stretto.runtime.publish import Publisher

_LOOK_S = 0.05


class OldLogprobScorer:
    """Collects and hands over; the scores go to ``scored``."""

    def __init__(
        self, context: RunContext, old_logprobs: OldLogprobs, dispatcher: Dispatcher, publisher: Publisher
    ) -> None:
        self._ctx, self._old_logprobs, self._dispatcher, self._publisher = context, old_logprobs, dispatcher, publisher
        self._loop = asyncio.get_running_loop()
        self._stops = context.old_route == "interrupt"
        self._task: asyncio.Task[None] | None = None
        self._again = self._scoring = False

    @property
    def busy(self) -> bool:
        """Are scores being made (or has that failed)? A step waits for them, not for what hasn't begun: the learner
        scores what it finds unscored."""
        task = self._task
        if task is None or not task.done():
            return self._scoring
        return task.cancelled() or task.exception() is not None

    def column(self, columns: Columns) -> Columns:
        """The batch with what was scored of it."""
        return {**columns, "record.logp_old": self._old_logprobs.column(columns)}

    async def interrupt(self, version: int) -> float:
        """The learner made ``version``, which nobody has yet: stop all engines and score what they made before. They go
        on when they load it. Seconds that this took; 0 for routes that don't stop rollouts."""
        if not self._stops:
            return 0.0
        start = self._loop.time()
        await self._score(version, pause=True)
        return self._loop.time() - start

    async def published(self, version: int) -> None:
        """``version`` is on its way to the engines. After an interruption: all of them must have it before anything
        goes on. Otherwise: score what ends with that, meanwhile."""
        if self._stops:
            await self._publisher.settled()
            if self._publisher.stopped:
                return
            if any(engine.version != version for engine in self._ctx.engines):
                held = {engine.name: engine.version for engine in self._ctx.engines}
                raise InvariantError(f"version {version} was published after an interruption, but engines hold {held}")
            return
        self._again = True
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._follow(), name="old-policy scores")

    async def settled(self) -> None:
        """Wait until nothing is being scored; raises what went wrong."""
        if self._task is not None:
            await self._task

    def cancel(self) -> None:
        """The run is over."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self) -> None:
        while self._again:
            self._again = False
            await self._publisher.settled()
            self._scoring = True
            try:
                await self._score(self._oldest(), pause=False)
            finally:
                self._scoring = False

    def _oldest(self) -> int:
        """The oldest version under which a token may still be sampled."""
        pins = [g.pin for g in self._dispatcher.groups.running.values() if g.pin is not None]
        return min([engine.version for engine in self._ctx.engines if engine.version is not None] + pins)

    async def _score(self, before: int, pause: bool) -> None:
        """Let everything unscored of versions below ``before`` be scored."""
        partial_completions = await self._ctx.engines.snapshot(settle=True, pause=pause)
        await asyncio.sleep(0)  # rollouts take in what has just been delivered
        while any(member.client.replay for member in self._open()):  # after a resume: where its tokens lie isn't known
            if self._publisher.stopped:
                return
            await asyncio.sleep(_LOOK_S)
        alive = list(self._alive(partial_completions))
        self._old_logprobs.keep(t.id for t in alive)
        segments = [s for t in alive if (s := self._segment(t, before)) is not None]
        if not segments:
            return
        columns = pack(segments)
        logp = np.where(columns["mask"], await self._ctx.learner.score(columns), np.nan)
        self._ctx.learner.release(before)
        ends = np.cumsum(columns["length"])
        for one, part in zip(segments, np.split(logp, ends[:-1]), strict=True):
            self._old_logprobs.add(one.id, part)

    def _open(self) -> Iterator[Member]:
        return (m for g in self._dispatcher.groups.running.values() for m in g.members if not m.over)

    def _alive(self, partial_completions: dict[int, Completion]) -> Iterator[Trajectory]:
        """All that may train later, as far as it has come."""
        for group in self._dispatcher.groups.running.values():
            for member in group.members:
                if member.result is not None:
                    yield member.result
                elif not member.over and (so_far := unfinished(member, partial_completions)) is not None:
                    yield so_far
        for ready in self._dispatcher.pool.groups():
            yield from ready.trajectories()

    def _segment(self, t: Trajectory, before: int) -> Trajectory | None:
        """The trajectory up to its last token below ``before``; its mask holds those that aren't scored."""
        mask = t.mask & (t.versions < before)
        mask[: self._old_logprobs.reach(t.id)] = False
        return segment(t, mask)
