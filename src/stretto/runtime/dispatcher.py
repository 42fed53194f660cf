"""Starting groups, and taking in what becomes of them.

Owns the running groups, the pool and the data frontier. After each change ``wake`` schedules one pump: who may start is
asked of ``control`` until nobody may. Whoever waits for a change (the train loop) looks again when ``changed`` is set.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from stretto.data.modes import InFlight
from stretto.data.trajectory import Completion
from stretto.kernel.components import said_where
from stretto.kernel.errors import ConfigError, StrettoError, cause, did_you_mean
from stretto.kernel.trajectory_events import Ending
from stretto.pool.group import Group
from stretto.pool.pool import Pool
from stretto.runtime.client import RolloutClient
from stretto.runtime.context import RunContext
from stretto.runtime.groups import Groups
from stretto.runtime.members import GroupLimits
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.preemption import OCCASIONS, Preemption, Wakes

_REASONS = 3
_REASON_CHARACTERS = 300
_MANY_BATCHES = 10
"""So many batches' worth of groups, all filtered, are worth a word; and ten times as many, another one."""


class Dispatcher:
    """``published`` tells the newest published version; ``fatal`` ends the run."""

    def __init__(
        self, context: RunContext, published: Callable[[], int], fatal: Callable[[BaseException], None]
    ) -> None:
        self._ctx, self._c, self._fatal = context, context.config, fatal
        self._loop = asyncio.get_running_loop()
        self.pool = Pool()
        self.next_task = 0
        self.training: list[Group] = []
        """What the learner trains on now."""
        self.changed = asyncio.Event()
        self.is_open = False
        """May new groups start?"""
        self.pump_due = False
        self._failed_in_a_row = 0
        self._reasons: Counter[str] = Counter()
        self.filtered_in_a_row = 0
        """Groups that the filter dropped since it last let one through."""
        self._filtered_said = _MANY_BATCHES * self._c.prompts_per_step
        self._slice = None if context.slice_size is None else max(1, context.slice_size // self._c.group_size)
        self._more = False
        context.engines.batching_hint = lambda: self._more
        deadlines, workers = self._c.deadlines, self._c.workers
        self.groups = Groups(
            env=context.env,
            limits=GroupLimits(self._c.group_size, deadlines.rollout_s, deadlines.group_s, workers.replace_failed),
            rules=context.rules,
            log=context.log,
            version=published,
            make_client=self._client,
            ended=self.wake,
            ready=self._group_ready,
            failed=self._group_failed,
            fatal=fatal,
            promised=context.late.promised if context.late is not None else None,
        )
        self.preemption = Preemption(
            context.engines, context.log, context.view, self._c.control.in_flight, self._client_of, fatal
        )
        if getattr(context.rules.preemption, "watches_trajectories", False):
            context.log.hear(deciding=[Wakes(self.wake, OCCASIONS)])

    @property
    def exhausted(self) -> bool:
        """Has every task of the data been handed out?"""
        return self._ctx.tasks_in_all is not None and self.next_task >= self._ctx.tasks_in_all

    @property
    def held_bytes(self) -> int:
        """Of the groups that wait to be trained, and of the trajectories that wait for a late reward."""
        return self.pool.nbytes + (0 if self._ctx.late is None else self._ctx.late.queue.nbytes)

    def wake(self) -> None:
        """Something changed: pump once, soon."""
        if not self.pump_due:
            self.pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self.pump_due = self._more = False
        try:
            if self.is_open:
                self._change_roles()
                self.preemption.act(self._ctx.rules.preemption.decide(self._ctx.view))
                self.evict()
                self._start_groups()
                if self._more:
                    self.wake()
        except SystemExit as error:  # of an environment's ``task``, say: an error, not an order
            self._fatal(StrettoError(f"SystemExit: {said_where(error)}"))
        except Exception as error:
            self._fatal(error)
        self.changed.set()

    def _start_groups(self) -> None:
        ctx = self._ctx
        limit = ctx.rules.quota.limits(ctx.view).trajectories
        started, self._more = 0, False
        while not self.exhausted:
            if self._slice is not None and started >= self._slice:
                self._more = True  # and let the loop look around
                return
            if limit is not None and ctx.view.running_trajectories + self._c.group_size > limit:
                return  # the trajectories of a group start together
            if self.held_bytes > self._c.pool_limit_mib << 20 and len(self.pool) >= ctx.view.batch:
                return
            admits = ctx.rules.admission.decide
            name = ctx.rules.router.route(ctx.view, [v for v in ctx.view.versions if admits(ctx.view, v) > 0])
            if name is None:
                return
            engine = ctx.engines[name]
            pin = self.pin_on(engine)
            version = pin if pin is not None else engine.version
            if version is None or (pin is not None and admits(ctx.view, version) <= 0):
                return
            task = ctx.env.task(self.next_task)
            self.next_task += 1
            self.groups.start(task, engine, version, pin)
            started += 1

    def pin_on(self, engine: PooledEngine) -> int | None:
        """The version to which a group that starts on this engine now is pinned, if it is."""
        pin = self._ctx.rules.version_pinning.assign(self._ctx.view, engine.name)
        return engine.version if pin is None and self._c.control.in_flight == InFlight.PIN else pin

    def _change_roles(self) -> None:
        ctx = self._ctx
        for change in ctx.rules.elastic.decide(ctx.view):
            engine = ctx.engines.by_name.get(change.engine)
            if engine is None:
                known = did_you_mean(change.engine, ctx.engines.by_name)
                raise ConfigError(f"control.elastic changes the role of {change.engine!r}; {known}")
            engine.role = change.role
            ctx.log.emit("RoleChanged", worker=engine.name, role=engine.role)

    def _client_of(self, trajectory: int) -> RolloutClient | None:
        seen = self._ctx.view.group_of(trajectory)
        group = None if seen is None else self.groups.running.get(seen.id)
        members = () if group is None else group.members
        return next((m.client for m in members if m.trajectory == trajectory and not m.over), None)

    def _client(
        self, trajectory: int, key: int, group: int, engine: PooledEngine, pin: int | None,
        replay: Sequence[Completion], version: int,
    ) -> RolloutClient:  # fmt: skip
        ctx = self._ctx
        return RolloutClient(
            trajectory=trajectory, noise_key=key, group=group, engine=engine, sampling=ctx.sampling, seed=self._c.seed,
            scoring=ctx.scoring, log=ctx.log, pin=pin, replay=replay, top_logprobs=ctx.top_logprobs,
            sampled_logprobs=ctx.sampled_logprobs, trains=True, version=version,
        )  # fmt: skip

    def _group_ready(self, group: Group) -> None:
        self._failed_in_a_row = self.filtered_in_a_row = 0
        self._filtered_said = _MANY_BATCHES * self._c.prompts_per_step
        self._reasons.clear()
        self.pool.add(group)
        self.wake()

    def _group_failed(self, group: int, reason: str, why: Counter[str]) -> None:
        if reason:
            self._failed_in_a_row += 1
            self._reasons += why
            if self._failed_in_a_row >= max(3, self._c.prompts_per_step):
                self._fatal(StrettoError(f"{self._failed_in_a_row} groups in a row failed; the last: {reason}. "
                                         f"Why their members failed: {_most(self._reasons)}. Each one's reason is in "
                                         "its TrajEnd event (`stretto log RUN`)"))  # fmt: skip
        else:  # filtered: its members did what they should
            self._failed_in_a_row = 0
            self._reasons.clear()
            self._filtered(", ".join(why))
        self.wake()

    def _filtered(self, reason: str) -> None:
        """A filter that drops everything would be silent until ``deadlines.batch_s``."""
        self.filtered_in_a_row += 1
        if self.filtered_in_a_row < self._filtered_said:
            return
        self._filtered_said *= 10
        what = (f"{self.filtered_in_a_row} groups in a row were dropped by control.filter = "
                f"{self._c.control.filter.name!r} ({reason}), so nothing trains: are these tasks all too hard or all "
                "too easy, or the reward always the same?")  # fmt: skip
        self._ctx.on_progress(what)
        self._ctx.log.emit("Fault", where="control.filter", what=what)

    def evict(self) -> None:
        """End what the pool rule rejects."""
        ctx = self._ctx
        for group in self.pool.take(list(ctx.rules.pool.evict(ctx.view))):
            self.end_group(group.id, group.ids, group.policy_steps, Ending.REJECTED, "control.pool")

    def end_group(self, group: int, ids: Sequence[int], tokens: int, ending: str, reason: str) -> None:
        """Log the end of a whole group that doesn't train: of these trajectories, with so many tokens sampled."""
        self._ctx.log.emit("TrajEnd", traj=ids, ending=ending, reason=reason, tokens=tokens, group=group,
                           group_over=True)  # fmt: skip

    def abandon(self, reason: str) -> None:
        """End everything that is open as cancelled."""
        self.groups.cancel_all(reason)
        for group in self.pool.take([g.id for g in self.pool.groups()]):
            self.end_group(group.id, group.ids, group.policy_steps, Ending.CANCELLED, reason)
        training = self._ctx.view.open_ids
        if training:
            tokens = sum(group.policy_steps for group in self.training)
            self._ctx.log.emit("TrajEnd", traj=training, ending=Ending.CANCELLED, reason=reason, tokens=tokens)
        if self._ctx.late is not None:
            self._ctx.late.abandon(reason)


def _most(reasons: Counter[str]) -> str:
    """The most frequent reasons, with how often each one came."""
    causes, first = Counter[str](), dict[str, str]()
    for reason, n in reasons.items():
        causes[cause(reason)] += n
        first.setdefault(cause(reason), reason)
    named = [f"{n} x {first[key][:_REASON_CHARACTERS]}" for key, n in causes.most_common(_REASONS)]
    rest = causes.total() - sum(n for _, n in causes.most_common(_REASONS))
    return "; ".join([*named, f"{rest} x something else"] if rest else named)
