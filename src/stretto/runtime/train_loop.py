"""One learner step after another: wait for a batch, train it, offer the new weights."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import numpy as np

from stretto.control.pace import ScoresPrefixes
from stretto.data.schema import Columns
from stretto.kernel.errors import DeadlockError, InvariantError
from stretto.kernel.metrics import Metric, Section, declare, joined
from stretto.kernel.trajectory_events import Ending
from stretto.learner.result import StepResult
from stretto.pool.group import Group
from stretto.pool.pool import columns_of
from stretto.runtime.context import RunContext
from stretto.runtime.dispatcher import Dispatcher
from stretto.runtime.old_logprob_scorer import OldLogprobScorer
from stretto.runtime.prefix_scorer import score_prefixes
from stretto.runtime.publish import Publisher

OWN = declare(
    __name__,
    Metric(Section.LEARNER, "old_policy/stall_s", "s",
           "how long the learner stood still for log-probabilities of the old policy", "small",
           "`objective` without an old policy"),
)  # fmt: skip


class TrainLoop:
    """Drives the learner. ``stop`` ends it after the running step."""

    def __init__(self, context: RunContext, dispatcher: Dispatcher, publisher: Publisher) -> None:
        self._ctx, self._c, self._dispatcher, self._publisher = context, context.config, dispatcher, publisher
        self._loop = asyncio.get_running_loop()
        self._old_scorer = (
            None
            if context.old_logprobs is None
            else OldLogprobScorer(context, context.old_logprobs, dispatcher, publisher)
        )
        self._stall_s = 0.0
        """How long the next step has waited for old log-probabilities."""
        rule = context.rules.pool
        self._prefix_rule = rule if isinstance(rule, ScoresPrefixes) else None
        self.stopping = False

    def stop(self) -> None:
        """Take no further batch."""
        self.stopping = True
        self._dispatcher.is_open = False
        self._dispatcher.changed.set()

    async def settled(self) -> None:
        """Wait until nothing is being scored."""
        if self._old_scorer is not None:
            await self._old_scorer.settled()

    def close(self) -> None:
        """The run is over."""
        if self._old_scorer is not None:
            self._old_scorer.cancel()

    async def step(self) -> bool:
        """One step; False: there is no further batch (stopped, or the data is exhausted)."""
        ids = await self._ctx.waits.wait_with_deadline(
            self._next_batch(), "the learner", self._describe, self._c.deadlines.batch_s, "batch_s"
        )
        if ids is None:
            return False
        pool = self._dispatcher.pool
        if missing := [i for i in ids if i not in pool]:
            raise InvariantError(f"control.batch chose groups {missing}, which are not in the pool")
        await self._train(pool.get(ids))
        return True

    async def _next_batch(self) -> list[int] | None:
        ctx = self._ctx
        while True:
            self._dispatcher.changed.clear()
            if self.stopping:
                return None
            if self._prefix_rule is not None and await score_prefixes(ctx, self._prefix_rule, self._dispatcher.pool):
                continue
            self._dispatcher.evict()
            ids = ctx.rules.batch.form(ctx.view)
            if ids is not None and self._old_scorer is not None and self._old_scorer.busy:
                start = self._loop.time()
                await self._old_scorer.settled()
                self._stall_s += self._loop.time() - start
                continue
            if ids is not None:
                return list(ids)
            dispatcher = self._dispatcher
            coming = dispatcher.pump_due or dispatcher.groups.running or self._publisher.busy
            if not coming and not any(engine.restarting for engine in ctx.engines):
                if dispatcher.exhausted:
                    return None
                raise DeadlockError(
                    f"the learner waits for {self._describe()}, nothing runs and control.admission and "
                    "control.quota start nothing"
                )
            await self._dispatcher.changed.wait()

    async def _train(self, groups: list[Group]) -> None:
        ctx, c = self._ctx, self._c
        version = ctx.view.version
        columns = columns_of(groups)
        ids = [id for group in groups for id in group.ids]
        staleness = _staleness(columns, version, c.lag_bound)
        late: dict[str, object] = {}
        tokens = int(columns["mask"].sum())
        if ctx.late is not None:
            columns, late = ctx.late.join(columns, version)
        # only now: what may go wrong before finds the groups in the pool
        dispatcher = self._dispatcher
        dispatcher.training = dispatcher.pool.take([g.id for g in groups])
        ctx.log.emit(
            "StepStart",
            step=version,
            version=version,
            groups=[g.id for g in groups],
            traj=ids,
            tokens=tokens,
            staleness=staleness,
            **late,
        )
        self._dispatcher.wake()
        if self._old_scorer is not None:
            columns = self._old_scorer.column(columns)
        stepped, staging = await ctx.learner.step(columns, self._publisher.room(version + 1))
        for engine in ctx.engines:
            engine.flush_busy()
        if self._old_scorer is not None and not stepped.skipped:
            self._stall_s += await self._old_scorer.interrupt(stepped.version)
        metrics = stepped.metrics
        if ctx.old_route is not None and not stepped.skipped:
            metrics = joined(metrics, OWN.checked({"old_policy/stall_s": self._stall_s + stepped.fill_s}))
            self._stall_s = 0.0
        if ctx.late is not None:
            metrics = joined(metrics, ctx.late.step_ended(groups, version, stepped.skipped))
        ctx.log.emit("StepEnd", step=version, version=stepped.version, skipped=stepped.skipped, metrics=metrics)
        if stepped.skipped:
            self._skipped(ids, tokens, stepped)
        elif staging is not None:
            self._publisher.offer(stepped.version, staging)
            if self._old_scorer is not None:
                await self._old_scorer.published(stepped.version)
        dispatcher.training = []
        # what only records comes after the next batch is on its way
        self._loop.call_soon(ctx.on_step, version, groups, stepped)
        self._loop.call_soon(ctx.log.step_ended)
        self._dispatcher.wake()

    def _skipped(self, ids: list[int], tokens: int, stepped: StepResult) -> None:
        """The gradient wasn't finite: weights as before, the batch is lost. Too many in a row end the learner."""
        self._ctx.log.emit("Fault", where="learner", what=stepped.reason)
        self._ctx.log.emit("TrajEnd", traj=ids, ending=Ending.FAILED, reason="non-finite gradient: "
                         "the step was skipped", tokens=tokens)  # fmt: skip

    def _describe(self) -> str:
        view = self._ctx.view
        running = sum(g.open for g in self._dispatcher.groups.running.values())
        dropped = self._dispatcher.filtered_in_a_row
        return (
            f"a batch of {view.take} groups at version {view.version}: {len(view.ready)} ready, {len(view.running)} "
            f"running with {running} open trajectories, {held([e.version for e in view.engines.values()])}"
            + (f", the last {dropped} groups were all dropped by control.filter" if dropped else "")
        )


def held(versions: Sequence[int | None]) -> str:
    """Which versions the engines hold, however many engines there are."""
    counts = Counter("none" if v is None else str(v) for v in versions)
    if len(versions) == 1:
        return f"the engine at version {next(iter(counts))}"
    parts = [f"{n} at version {v}" for v, n in counts.most_common(4)]
    rest = len(versions) - sum(n for _, n in counts.most_common(4))
    return f"engines: {', '.join(parts)}" + (f", {rest} at others" if rest else "")


def _staleness(columns: Columns, version: int, lag_bound: int) -> dict[str, int]:
    """Token sums over the batch, and the hard bound (PACE's split, in integers)."""
    mask, length = columns["mask"], columns["length"]
    versions = columns["versions"][mask]
    tokens = len(versions)
    sampled = int(versions.sum(dtype="int64"))
    starts = (length.cumsum() - length)[length > 0]  # without empty rows: ``reduceat`` takes these for the next one
    counts = np.add.reduceat(mask, starts, dtype="int64") if len(starts) else starts
    complete = int((columns["version_complete"][length > 0] * counts).sum())
    oldest = version - int(versions.min()) if tokens else 0
    if oldest > lag_bound:
        raise InvariantError(
            f"step {version}: a token has staleness {oldest}, the lag bound is {lag_bound}: the admission or batch "
            "rule does not keep it"
        )
    return {
        "total": version * tokens - sampled,
        "generation": complete - sampled,
        "waiting": version * tokens - complete,
        "max": oldest,
    }
