"""The loop. It turns the wheel and asks ``control`` at each decision; nobody else decides.

One object owns the state: running groups, the pool, the publisher. Everything that happens is an event; the control
view is built from the events. After each change ``_wake`` runs the pump (who may start?) and lets the trainer look
again (may a step start?). The same code runs on the wall clock and on the virtual one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules
from stretto.control.view import View
from stretto.envs.base import Environment
from stretto.errors import ConfigError, DeadlockError, InvariantError, StrettoError
from stretto.pool.columns import Columns, pack
from stretto.pool.pool import Pool
from stretto.rollout.types import SamplingParams
from stretto.runtime.client import RolloutClient
from stretto.runtime.evaluate import Evaluator
from stretto.runtime.events import EventLog
from stretto.runtime.groups import GroupLimits, Groups
from stretto.runtime.manifest import Restored, Snapshot, save_checkpoint
from stretto.runtime.publish import Publisher
from stretto.runtime.waits import Waits
from stretto.runtime.workers.base import EngineHandle, LearnerHandle, Stepped
from stretto.trajectory import Group, Trajectory


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run is made of. ``on_step(version, groups, stepped)`` sees each trained batch (samples, live view)."""

    config: RunConfig
    rules: Rules
    env: Environment
    engines: list[EngineHandle]
    learner: LearnerHandle
    scoring: Any
    sampling: SamplingParams
    log: EventLog
    view: View
    waits: Waits
    out: Path
    max_steps: int
    tasks_in_all: int | None
    evaluator: Evaluator | None = None
    on_step: Callable[[int, list[Group], Stepped], None] = lambda version, groups, stepped: None
    offsets: Callable[[], dict[str, int]] = dict
    """Byte offsets of further append-only files, saved with checkpoints."""
    says: Callable[[str], None] = lambda line: None


@dataclass(slots=True)
class Outcome:
    """How the run ended."""

    reason: str


class Orchestrator:
    """One run of the loop. ``restored``: go on from a checkpoint."""

    def __init__(self, parts: Parts, restored: Restored | None = None) -> None:
        self._p = parts
        self._c = parts.config
        self._loop = asyncio.get_running_loop()
        self._restored = restored
        self._pool = Pool()
        self._next_task = 0 if restored is None else restored.next_task
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._changed = asyncio.Event()
        self._pump_due = False
        self._open_for_work = False
        self._stop = False
        self._failed_in_a_row = 0
        self._published = 0
        self._flusher: asyncio.TimerHandle | None = None
        self._engines = {engine.name: engine for engine in parts.engines}
        deadlines = self._c.deadlines
        self._groups = Groups(
            env=parts.env,
            limits=GroupLimits(
                self._c.group_size, deadlines.rollout_s, deadlines.group_s, self._c.workers.replace_failed
            ),
            rule=parts.rules.filter,
            log=parts.log,
            version=lambda: self._published,
            make_client=self._client,
            ended=self._wake,
            ready=self._group_ready,
            failed=self._group_failed,
            fatal=self._fail,
        )
        self._publisher = Publisher(
            self._engines, parts.rules.publish, parts.view, parts.log, self._c.control.in_flight,
            lambda: {g.pin for g in self._groups.running.values() if g.pin is not None}, self._wake, self._fail,
        )  # fmt: skip

    def stop(self) -> None:
        """Finish the running step, save, and end."""
        self._stop = True
        self._changed.set()

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
            reason = "interrupted"
            raise
        finally:
            self._open_for_work = False
            if self._flusher is not None:
                self._flusher.cancel()
            main.cancel()
            await asyncio.gather(main, return_exceptions=True)
            with contextlib.suppress(OSError):  # a full disk, say: it must not hide the first error
                self._abandon(f"the run {reason}" if reason == "failed" else reason)
            await self._close()
            with contextlib.suppress(OSError):
                self._end(reason)

    def _flush_often(self) -> None:
        """On the wall clock the log is on the disk within a second: a run that waits can be looked into."""
        self._p.log.flush()
        self._flusher = self._loop.call_later(1.0, self._flush_often)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that no task would ever see (in a callback, in a forgotten task) ends the run, too."""
        error = context.get("exception")
        self._fail(error if isinstance(error, Exception) else StrettoError(f"the event loop: {context['message']}"))

    async def _main(self) -> Outcome:
        p = self._p
        await self._start_workers()
        await self._first_publish()
        if p.evaluator is not None and self._restored is None and self._c.eval.at_start:
            await self._evaluate()
        if self._restored is not None:
            self._restore_groups(self._restored)
        self._open_for_work = True
        self._wake()
        reason = await self._train()
        self._open_for_work = False
        if reason != "interrupted":
            self._abandon("the run is over")
        await self._publisher.settled()
        if p.evaluator is not None and reason != "interrupted":
            await self._evaluate()
        await self._checkpoint()
        if reason == "interrupted":
            self._abandon("interrupted; its state is in the checkpoint")
        await p.learner.save_model(p.out / "model")
        return Outcome(reason)

    async def _start_workers(self) -> None:
        p = self._p
        p.says(f"starting the learner and {len(self._engines)} engine(s)")
        for engine in self._engines.values():
            engine.failed.add_done_callback(self._engine_died)
        await asyncio.gather(p.learner.start(), *(engine.start() for engine in self._engines.values()))
        for engine in self._engines.values():
            engine.on_restart = self._publisher.reload

    async def _first_publish(self) -> None:
        p = self._p
        version = 0
        if self._restored is not None:
            version = await p.learner.load(self._restored.learner_dir)
            if version != self._restored.version:
                raise StrettoError(
                    f"checkpoint {self._restored.learner_dir}: the learner is at version {version}, the manifest says "
                    f"{self._restored.version}"
                )
        start = self._loop.time()
        slot = await self._publisher.free_slot(version)
        staged = await p.learner.stage(slot)
        self._log_published(version, staged, start)
        self._publisher.first(version, slot, staged)
        await self._publisher.settled()

    async def _train(self) -> str:
        p = self._p
        describe = self._describe_batch
        while p.view.version < p.max_steps:
            ids = await p.waits.on(
                self._next_batch(), "the learner", describe, self._c.deadlines.batch_s, "batch_s"
            )
            if ids is None:
                return "interrupted" if self._stop else "data exhausted"
            await self._step(self._pool.take(ids))
            version = p.view.version
            if self._c.save_every and version % self._c.save_every == 0 and version < p.max_steps:
                await self._checkpoint()
            due = bool(self._c.eval.every) and version % self._c.eval.every == 0 and version < p.max_steps
            if p.evaluator is not None and due:
                await self._evaluate()
            if self._stop and version < p.max_steps:
                return "interrupted"
        return "done"

    async def _next_batch(self) -> list[int] | None:
        p = self._p
        while True:
            self._changed.clear()
            if self._stop:
                return None
            self._reject()
            ids = p.rules.batch.form(p.view)
            if ids is not None:
                return list(ids)
            if not self._pump_due and not self._groups.running and not self._publisher.busy and not self._restarting:
                if self._exhausted:
                    return None
                raise DeadlockError(
                    f"the learner waits for {self._describe_batch()}, nothing runs and control.admission starts nothing"
                )
            await self._changed.wait()

    async def _step(self, groups: list[Group]) -> None:
        p, c = self._p, self._c
        version = p.view.version
        trajectories = [t for group in groups for t in group.trajectories]
        columns = pack(trajectories)
        if len(p.rules.train_mode.chunks(p.view, [g.id for g in groups])) != 1:
            raise ConfigError("control.train_mode asks for several portions; this learner takes a batch whole")
        p.log.emit(
            "StepStart",
            step=version,
            version=version,
            groups=[g.id for g in groups],
            traj=[t.id for t in trajectories],
            tokens=int(columns["mask"].sum()),
            staleness=_staleness(columns, version, c.lag_bound),
        )
        self._wake()
        slot = await self._publisher.free_slot(version + 1)
        stepped = await p.learner.step(columns, slot)
        for engine in self._engines.values():
            engine.flush_busy()
        p.log.emit("StepEnd", step=version, version=stepped.version, skipped=stepped.skipped, metrics=stepped.metrics)
        if stepped.skipped:
            self._skipped(trajectories, stepped)
        else:
            self._log_published(stepped.version, stepped.staged, self._loop.time() - stepped.stage_s)
            self._publisher.offer(stepped.version, slot, stepped.staged)
        p.on_step(version, groups, stepped)
        p.log.flush()
        self._wake()

    def _skipped(self, trajectories: list[Any], stepped: Stepped) -> None:
        """The gradient wasn't finite: weights as before, the batch is lost. Too many in a row end the learner."""
        self._p.log.emit("Fault", where="learner", what=stepped.reason)
        self._p.log.emit("TrajEnd", traj=[t.id for t in trajectories], ending="failed", reason="non-finite gradient: "
                         "the step was skipped", tokens=sum(t.policy_tokens for t in trajectories))  # fmt: skip

    # starting groups

    def _wake(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        try:
            if self._open_for_work and not self._stop:
                self._change_roles()
                self._reject()
                self._start_groups()
        except Exception as error:
            self._fail(error)
        self._changed.set()

    def _start_groups(self) -> None:
        p = self._p
        limit = p.rules.quota.limits(p.view).trajectories
        while not self._exhausted:
            if limit is not None and p.view.running_trajectories >= limit:
                return
            if self._pool.nbytes > self._c.pool_limit_mib << 20 and len(self._pool) >= p.view.batch:
                return
            admits = p.rules.admission.decide
            name = p.rules.router.route(p.view, [v for v in p.view.versions if admits(p.view, v) > 0])
            if name is None:
                return
            engine = self._engines[name]
            pin = p.rules.version.assign(p.view, name)
            if pin is None and self._c.control.in_flight == "pin":
                pin = engine.version
            version = pin if pin is not None else engine.version
            if version is None or (pin is not None and admits(p.view, version) <= 0):
                return
            task = p.env.task(self._next_task)
            self._next_task += 1
            self._groups.start(task, engine, version, pin)

    def _change_roles(self) -> None:
        p = self._p
        for change in p.rules.elastic.decide(p.view):
            p.log.emit("RoleChanged", worker=change.engine, active=change.active)
        if p.rules.residency.decide(p.view):
            raise ConfigError("control.residency: this runtime can't pause or move trajectories yet")

    def _client(self, trajectory: int, group: int, engine: EngineHandle, pin: int | None, replay: Any) -> RolloutClient:
        p = self._p
        return RolloutClient(
            trajectory=trajectory, group=group, engine=engine, sampling=p.sampling, seed=self._c.seed,
            scoring=p.scoring, log=p.log, pin=pin, replay=replay, top_logp=self._c.engine.top_logp,
            draws=self._c.engine.draws,
        )  # fmt: skip

    @property
    def _exhausted(self) -> bool:
        return self._p.tasks_in_all is not None and self._next_task >= self._p.tasks_in_all

    @property
    def _restarting(self) -> bool:
        return any(engine.restarting for engine in self._engines.values())

    # what groups report

    def _group_ready(self, group: Group) -> None:
        keep = self._p.rules.chunk.keep
        for trajectory in group.trajectories:
            chosen = keep(trajectory.policy_tokens, trajectory.turns)
            if chosen != slice(None):
                at = trajectory.mask.nonzero()[0][chosen]
                trajectory.mask = trajectory.mask & False
                trajectory.mask[at] = True
        self._failed_in_a_row = 0
        self._pool.add(group)
        self._wake()

    def _group_failed(self, group: int, reason: str) -> None:
        if reason:
            self._failed_in_a_row += 1
            if self._failed_in_a_row >= max(3, self._c.prompts_per_step):
                self._fail(StrettoError(f"{self._failed_in_a_row} groups in a row failed; the last: {reason}. "
                                        "See the TrajEnd events in events.jsonl for why"))  # fmt: skip
        self._wake()

    def _reject(self) -> None:
        p = self._p
        for group in self._pool.take(list(p.rules.pool.reject(p.view))):
            self._end_group(group.id, group.trajectories, "rejected", "control.pool")

    # checkpoints and evaluation

    async def _checkpoint(self) -> None:
        p = self._p

        async def partials() -> dict[int, Any]:
            if not self._c.save_partial:
                return {}
            found = await asyncio.gather(*(engine.partials() for engine in self._engines.values()))
            return {request: completion for part in found for request, completion in part.items()}

        def snapshot(parts: dict[int, Any]) -> Snapshot:
            p.log.emit("Checkpoint", step=p.view.version, version=p.view.version)
            p.log.flush(sync=True)
            return Snapshot(
                version=p.view.version,
                next_task=self._next_task,
                clock_s=p.log.run_time(self._loop.time()),
                offsets={"events.jsonl": p.log.offset, **p.offsets()},
                ready=self._pool.groups(),
                running=list(self._groups.running.values()),
                partials=parts,
                keep_partial=self._c.save_partial,
            )

        await save_checkpoint(p.out / "checkpoints", p.learner.save, partials, snapshot, self._c)

    def _restore_groups(self, restored: Restored) -> None:
        p = self._p
        for group in restored.ready:
            self._pool.add(group)
        excess = self._excess(restored)
        for group in self._pool.take([g.id for g in restored.ready if g.id in excess]):
            self._end_group(group.id, group.trajectories, "cancelled", "max_steps was lowered")
        for saved in restored.running:
            if saved.id in excess:
                self._end_group(saved.id, saved.done, "cancelled", "max_steps was lowered", list(saved.open))
                continue
            name = p.rules.router.route(p.view, p.view.versions)
            assert name is not None, "all engines have a version after the first publish"
            engine = self._engines[name]
            assert engine.version is not None
            # a pinned trajectory can't go on under another version: it starts over
            pinned = self._c.control.in_flight == "pin"
            open_ = {i: [] if pinned else completions for i, completions in saved.open.items()}
            fresh = not saved.done and not any(open_.values())
            pin = engine.version if pinned else None
            self._groups.restart(
                p.env.task(saved.id), engine, engine.version if fresh else saved.version, pin, saved.done,
                open_, saved.replaced, saved.created,
            )  # fmt: skip

    def _excess(self, restored: Restored) -> set[int]:
        """Groups that can't train any more because the resumed run has a lower ``max_steps``: the newest ones."""
        groups = [(g.version_dispatch, g.id) for g in restored.ready] + [(g.version, g.id) for g in restored.running]
        trainable = self._c.prompts_per_step * max(0, self._p.max_steps - restored.version)
        return {group for _, group in sorted(groups)[trainable:]}

    def _end_group(
        self, group: int, done: list[Trajectory], ending: str, reason: str, open_: Sequence[int] = ()
    ) -> None:
        self._p.log.emit(
            "TrajEnd", traj=[*(t.id for t in done), *open_], ending=ending, reason=reason,
            tokens=sum(t.policy_tokens for t in done), group=group, group_over=True,
        )  # fmt: skip

    async def _evaluate(self) -> None:
        assert self._p.evaluator is not None
        await self._publisher.settled()
        self._publisher.hold()
        try:
            newest = max(e.version for e in self._engines.values() if e.version is not None)
            engines = [e for e in self._engines.values() if e.version == newest]
            more = {}
            if self._c.eval.canary:
                more["distance"] = {engine.name: await engine.distance() for engine in engines}
            await self._p.evaluator.run(engines, self._loop.time, **more)
        finally:
            self._publisher.let_go()
        self._p.log.flush()

    # endings

    def _engine_died(self, failed: asyncio.Future[None]) -> None:
        if not failed.cancelled() and (error := failed.exception()) is not None:
            self._fail(error)

    def fail(self, error: BaseException) -> None:
        """A part outside the loop died."""
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    def _abandon(self, reason: str) -> None:
        self._groups.cancel_all(reason)
        for group in self._pool.take([g.id for g in self._pool.groups()]):
            self._end_group(group.id, group.trajectories, "cancelled", reason)
        training = self._p.view.open_ids
        if training:
            tokens = sum(g.tokens for g in self._p.view.training.values())
            self._p.log.emit("TrajEnd", traj=training, ending="cancelled", reason=reason, tokens=tokens)

    def _end(self, reason: str) -> None:
        """The last line of the log. Everything is closed: nothing can come after it."""
        for engine in self._engines.values():
            engine.flush_busy()
        view = self._p.view
        endings = ("submitted", "trained", "rejected", "filtered", "failed", "cancelled")
        ledger = {name: view.ledger[name] for name in endings}
        self._p.log.emit("RunEnd", reason=reason, ledger={**ledger, "open": view.open})
        self._p.log.flush()

    async def _close(self) -> None:
        parts: list[Any] = [*self._engines.values(), self._p.learner, self._p.scoring]
        await asyncio.gather(*(part.close() for part in parts), return_exceptions=True)

    def _log_published(self, version: int, staged: Any, start: float) -> None:
        self._published = version
        checksum, nbytes = getattr(staged, "checksum", ""), getattr(staged, "nbytes", 0)
        self._p.log.emit(
            "Published", version=version, checksum=checksum, bytes=nbytes, start=self._p.log.run_time(start)
        )

    def _describe_batch(self) -> str:
        view = self._p.view
        running = sum(g.open for g in self._groups.running.values())
        return (
            f"a batch of {view.batch} groups at version {view.version}: {len(view.ready)} ready, {len(view.running)} "
            f"running with {running} open trajectories, engines at {[e.version for e in view.engines.values()]}"
        )


def _staleness(columns: Columns, version: int, lag_bound: int) -> dict[str, int]:
    """Token sums over the batch, and the hard bound (PACE's split, in integers)."""
    mask = columns["mask"]
    versions = columns["versions"][mask].astype("int64")
    complete = columns["version_complete"].repeat(columns["length"])[mask].astype("int64")
    tokens = len(versions)
    oldest = version - int(versions.min()) if tokens else 0
    if oldest > lag_bound:
        raise InvariantError(
            f"step {version}: a token has staleness {oldest}, the lag bound is {lag_bound}: the admission or batch "
            "rule does not keep it"
        )
    return {
        "total": int(version * tokens - versions.sum()),
        "generation": int((complete - versions).sum()),
        "waiting": int((version - complete).sum()),
        "max": oldest,
    }
