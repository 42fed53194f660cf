"""The loop. It turns the wheel and asks ``control`` at each decision; nobody else decides.

It owns the life of a run: workers come up, the first weights are published, the dispatcher starts groups while the
train loop trains batches, evaluations and checkpoints happen between steps, and everything is ended whatever happens.
Everything that happens is an event; the control view is built from the events. The same code runs on the wall clock and
on the virtual one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from stretto.kernel.clock import VirtualLoop
from stretto.kernel.errors import StrettoError, WorkerError
from stretto.kernel.trajectory_events import ENDINGS
from stretto.runtime.context import Outcome, RunContext
from stretto.runtime.dispatcher import Dispatcher
from stretto.runtime.manifest import Restored
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.publish import Publisher
from stretto.runtime.recovery import checkpoint, restore_groups
from stretto.runtime.saving import SavePlan
from stretto.runtime.train_loop import TrainLoop
from stretto.weights.staged import StagedWeights

_ABANDON_S = 5.0
"""For what was abandoned to notice it; what doesn't is left alone."""


class Orchestrator:
    """One run of the loop. ``restored``: go on from a checkpoint; ``evaluated``: the version of its last evaluation."""

    def __init__(self, context: RunContext, restored: Restored | None = None, evaluated: int | None = None) -> None:
        self._ctx = context
        self._c = context.config
        self._loop = asyncio.get_running_loop()
        self._restored, self._evaluated = restored, evaluated
        self._stopped: asyncio.Future[None] = self._loop.create_future()
        self._at_once = False
        """Is there nothing that workers would have to end in order?"""
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._published = 0
        self._flusher: asyncio.TimerHandle | None = None
        self._engines = context.engines
        self._dispatcher = Dispatcher(context, lambda: self._published, self.fail)
        if restored is not None:
            self._dispatcher.next_task = restored.next_task
            self._dispatcher.groups.next_trajectory = restored.next_trajectory
        self._publisher = Publisher(
            context.engines.by_name, context.rules.publish, context.view, context.log, context.waits, self._c.deadlines,
            self._c.control.in_flight, self._c.weights.staged_versions, self._log_published,
            context.learner.release_weights, self._dispatcher.wake, self.fail,
        )  # fmt: skip
        self._train_loop = TrainLoop(context, self._dispatcher, self._publisher)

    def stop(self) -> None:
        """Finish the running step, abandon what can be done again (a start-up, an evaluation), save, and end."""
        if not self._stopped.done():
            self._stopped.set_result(None)
        self._train_loop.stop()
        self._publisher.stop()

    # the run

    async def run(self) -> Outcome:
        """Run to the end; on any failure everything is ended and the first error is raised."""
        self._loop.set_exception_handler(self._unhandled)
        if isinstance(self._loop, asyncio.SelectorEventLoop):
            self._flush_often()
        main = self._loop.create_task(self._main(), name="the loop")
        reason = "failed"
        try:
            both: set[asyncio.Future[Any]] = {main, self._failure}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if self._failure.done():
                self._failure.result()
            outcome = await main
            reason = outcome.reason
            return outcome
        except (asyncio.CancelledError, KeyboardInterrupt):
            reason, self._at_once = "interrupted", True
            raise
        finally:
            self._dispatcher.is_open = False
            if self._flusher is not None:
                self._flusher.cancel()
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)
            with contextlib.suppress(OSError):  # a full disk, say: it must not hide the first error
                self._dispatcher.abandon(f"the run {reason}" if reason == "failed" else reason)
            await self._close()
            with contextlib.suppress(OSError):
                self._end(reason)

    def _flush_often(self) -> None:
        """On the wall clock the log is on the disk within a second: a run that waits can be looked into."""
        self._ctx.log.flush()
        self._flusher = self._loop.call_later(1.0, self._flush_often)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that no task would ever see (in a callback, in a forgotten task) ends the run, too."""
        error = context.get("exception")
        self.fail(error if isinstance(error, Exception) else StrettoError(f"the event loop: {context['message']}"))

    async def _main(self) -> Outcome:
        ctx = self._ctx
        if not await self._unless_stopped(self._come_up()):
            self._at_once = True
            return Outcome("interrupted")  # nothing has changed since the checkpoint, or since the beginning
        if self._restored is not None:
            restore_groups(ctx, self._dispatcher, self._restored)
        self._dispatcher.is_open = True
        self._dispatcher.wake()
        reason = await self._train()
        self._dispatcher.is_open = False
        if reason == "done":
            self._dispatcher.abandon("the run is over")
        await self._publisher.settled()
        await self._train_loop.settled()
        if ctx.evaluator is not None and reason != "interrupted" and not await self._unless_stopped(self._evaluate()):
            reason = "interrupted"
        await checkpoint(ctx, self._dispatcher)
        if reason == "interrupted":
            self._dispatcher.abandon("interrupted; its state is in the checkpoint")
        elif reason == "data exhausted":  # in the checkpoint, too: a run that is given more data goes on with these
            self._leave_over()
        await ctx.learner.save_model(ctx.out / "model")
        return Outcome(reason)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do this, unless a stop comes before it is done: then it is abandoned (False), as it can be done again."""
        task = self._loop.create_task(work)
        try:
            await asyncio.wait({task, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                await task
                return True
            task.cancel()
            await asyncio.wait({task}, timeout=_ABANDON_S)
            return False
        finally:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # marks it as seen

    async def _come_up(self) -> None:
        """Workers, the first weights, the evaluation that comes before the first step."""
        await self._start_workers()
        await self._first_publish()
        if self._ctx.evaluator is not None and self._owes_evaluation():
            await self._evaluate()

    def _owes_evaluation(self) -> bool:
        """Is one due before anything trains? After a resume: one that was abandoned, or that never came."""
        version, c = self._ctx.view.version, self._c.eval
        if version >= self._ctx.max_steps > 0 or (self._evaluated is not None and self._evaluated >= version):
            return False  # the last one comes at the end
        return c.at_start if version == 0 else bool(c.every) and version % c.every == 0

    def _leave_over(self) -> None:
        """The groups at the end of the data that fill no batch."""
        left = len(self._dispatcher.pool)
        if left:
            self._ctx.on_progress(
                f"{left} prompt(s) at the end of the data fill no batch of prompts_per_step = "
                f"{self._c.prompts_per_step} and don't train"
                + (" (drop_last = true)" if self._c.drop_last else ": control.batch waits for a whole one")
            )
        self._dispatcher.abandon("the data is exhausted: no whole batch is left")

    async def _start_workers(self) -> None:
        ctx = self._ctx
        ctx.on_progress(f"starting the learner and {len(self._engines)} engine(s)")
        for engine in self._engines:
            engine.failed.add_done_callback(self._engine_died)
        await asyncio.gather(ctx.learner.start(), *(engine.start() for engine in self._engines))
        self._engines.on_return = self._publisher.reload

    async def _first_publish(self) -> None:
        ctx = self._ctx
        version = 0
        if self._restored is not None:
            version = await ctx.learner.load(self._restored.learner_dir)
            if version != self._restored.version:
                raise StrettoError(
                    f"checkpoint {self._restored.learner_dir}: the learner is at version {version}, the manifest says "
                    f"{self._restored.version}"
                )
        self._publisher.first(await ctx.learner.stage())
        await self._publisher.serving()

    async def _train(self) -> str:
        ctx, c = self._ctx, self._c
        saves = SavePlan(c, None if isinstance(self._loop, VirtualLoop) else self._loop.time)
        while ctx.view.version < ctx.max_steps:
            if not await self._train_loop.step():
                return "interrupted" if self._train_loop.stopping else "data exhausted"
            version, more = ctx.view.version, ctx.view.version < ctx.max_steps
            if more and saves.due(version):
                start = self._loop.time()
                await self._train_loop.settled()
                await checkpoint(ctx, self._dispatcher)
                saves.restart(self._loop.time() - start)
            if more and ctx.evaluator is not None and c.eval.every and version % c.eval.every == 0:
                await self._unless_stopped(self._evaluate())
            if more and self._train_loop.stopping:
                return "interrupted"
        return "done"

    async def _evaluate(self) -> None:
        assert self._ctx.evaluator is not None
        await self._publisher.serving()
        self._publisher.hold()
        try:
            newest = max(e.version for e in self._engines if e.version is not None)
            engines = [e for e in self._engines if e.version == newest]
            more = {}
            if self._c.eval.weight_drift:
                more["distance"] = await self._distances(engines)
            await self._ctx.evaluator.run(engines, self._loop.time, **more)
        finally:
            self._publisher.let_go()
        self._ctx.log.flush()

    async def _distances(self, engines: list[PooledEngine]) -> dict[str, float]:
        """How far each engine's weights are from its first ones; without those that die and come up again."""
        found = {}
        for engine in engines:
            try:
                found[engine.name] = await engine.handle.distance()
            except WorkerError:
                if not engine.restarting:
                    raise
        return found

    # endings

    def _engine_died(self, failed: asyncio.Future[None]) -> None:
        if not failed.cancelled() and (error := failed.exception()) is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Some part died: the first one to say so ends the run."""
        if not self._failure.done():
            self._failure.set_exception(error)

    def _end(self, reason: str) -> None:
        """The last line of the log. Everything is closed: nothing can come after it."""
        for engine in self._engines:
            engine.flush_busy()
        view = self._ctx.view
        ledger = {name: view.ledger[name] for name in ("submitted", *ENDINGS)}
        late = {} if self._ctx.late is None else {"late": self._ctx.late.queue.counts}
        self._ctx.log.emit("RunEnd", reason=reason, ledger={**ledger, "open": view.open}, **late)
        self._ctx.log.flush()

    async def _close(self) -> None:
        self._train_loop.close()
        self._publisher.close()
        parts: list[Any] = [self._dispatcher.preemption, *self._engines, self._ctx.learner, self._ctx.scoring]
        closing = asyncio.gather(*(part.close() for part in parts), return_exceptions=True)
        if self._at_once:
            await asyncio.sleep(0)  # by now they know that a death is no news
            self._ctx.kill()
        await closing

    def _log_published(self, staged: StagedWeights, start: float) -> None:
        self._published = staged.version.number
        self._ctx.log.emit(
            "Published", version=self._published, checksum=staged.checksum, bytes=staged.nbytes,
            start=self._ctx.log.run_time(start),
        )  # fmt: skip
