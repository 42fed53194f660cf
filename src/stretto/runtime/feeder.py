"""Starting groups, and taking in what becomes of them.

Owns the running groups, the pool and the data frontier. After each change ``wake`` schedules one pump: who may start is
asked of ``control`` until nobody may. Whoever waits for a change (the trainer) looks again when ``changed`` is set.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from stretto.components import said_where
from stretto.errors import ConfigError, StrettoError
from stretto.pool.pool import Pool
from stretto.runtime.client import RolloutClient
from stretto.runtime.groups import GroupLimits, Groups
from stretto.runtime.parts import Parts
from stretto.runtime.workers.base import EngineHandle
from stretto.trajectory import Group, Trajectory

_REASONS = 3
_REASON_CHARACTERS = 300
_MANY_BATCHES = 10
"""So many batches' worth of groups, all filtered, are worth a word; and ten times as many, another one."""


class Feeder:
    """``published`` tells the newest published version; ``fatal`` ends the run."""

    def __init__(self, parts: Parts, published: Callable[[], int], fatal: Callable[[BaseException], None]) -> None:
        self._p, self._c, self._fatal = parts, parts.config, fatal
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
        self._slice = None if parts.slice_size is None else max(1, parts.slice_size // self._c.group_size)
        self._more = False
        self._engines = {engine.name: engine for engine in parts.engines}
        for engine in parts.engines:
            engine.more_coming = lambda: self._more
        deadlines, workers = self._c.deadlines, self._c.workers
        self.groups = Groups(
            env=parts.env,
            limits=GroupLimits(self._c.group_size, deadlines.rollout_s, deadlines.group_s, workers.replace_failed),
            rule=parts.rules.filter,
            log=parts.log,
            version=published,
            make_client=self._client,
            ended=self.wake,
            ready=self._group_ready,
            failed=self._group_failed,
            fatal=fatal,
            promised=parts.late.promised if parts.late is not None else None,
        )

    @property
    def exhausted(self) -> bool:
        """Has every task of the data been handed out?"""
        return self._p.tasks_in_all is not None and self.next_task >= self._p.tasks_in_all

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
                self.reject()
                self._start_groups()
                if self._more:
                    self.wake()
        except SystemExit as error:  # of an environment's ``task``, say: an error, not an order
            self._fatal(StrettoError(f"SystemExit: {said_where(error)}"))
        except Exception as error:
            self._fatal(error)
        self.changed.set()

    def _start_groups(self) -> None:
        p = self._p
        limit = p.rules.quota.limits(p.view).trajectories
        started, self._more = 0, False
        while not self.exhausted:
            if self._slice is not None and started >= self._slice:
                self._more = True  # and let the loop look around
                return
            if limit is not None and p.view.running_trajectories + self._c.group_size > limit:
                return  # the trajectories of a group start together
            if self.pool.nbytes > self._c.pool_limit_mib << 20 and len(self.pool) >= p.view.batch:
                return
            admits = p.rules.admission.decide
            name = p.rules.router.route(p.view, [v for v in p.view.versions if admits(p.view, v) > 0])
            if name is None:
                return
            engine = self._engines[name]
            pin = self.pin_on(engine)
            version = pin if pin is not None else engine.version
            if version is None or (pin is not None and admits(p.view, version) <= 0):
                return
            task = p.env.task(self.next_task)
            self.next_task += 1
            self.groups.start(task, engine, version, pin)
            started += 1

    def pin_on(self, engine: EngineHandle) -> int | None:
        """The version to which a group that starts on this engine now is pinned, if it is."""
        pin = self._p.rules.version.assign(self._p.view, engine.name)
        return engine.version if pin is None and self._c.control.in_flight == "pin" else pin

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
            scoring=p.scoring, log=p.log, pin=pin, replay=replay, top_logp=p.top_logp,
            draws=p.draws, trains=True,
        )  # fmt: skip

    def _group_ready(self, group: Group) -> None:
        keep = self._p.rules.chunk.keep
        for trajectory in group.trajectories:
            chosen = keep(trajectory.policy_tokens, trajectory.turns)
            if chosen != slice(None):
                at = trajectory.mask.nonzero()[0][chosen]
                trajectory.mask = trajectory.mask & False
                trajectory.mask[at] = True
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
        self._p.says(what)
        self._p.log.emit("Fault", where="control.filter", what=what)

    def reject(self) -> None:
        """End what the pool rule rejects."""
        p = self._p
        for group in self.pool.take(list(p.rules.pool.reject(p.view))):
            self.end_group(group.id, group.trajectories, "rejected", "control.pool")

    def end_group(
        self, group: int, done: list[Trajectory], ending: str, reason: str, open_: Sequence[int] = ()
    ) -> None:
        """Log the end of a whole group that doesn't train."""
        self._p.log.emit(
            "TrajEnd", traj=[*(t.id for t in done), *open_], ending=ending, reason=reason,
            tokens=sum(t.policy_tokens for t in done), group=group, group_over=True,
        )  # fmt: skip

    def abandon(self, reason: str) -> None:
        """End everything that is open as cancelled."""
        self.groups.cancel_all(reason)
        for group in self.pool.take([g.id for g in self.pool.groups()]):
            self.end_group(group.id, group.trajectories, "cancelled", reason)
        training = self._p.view.open_ids
        if training:
            tokens = sum(t.policy_tokens for group in self.training for t in group.trajectories)
            self._p.log.emit("TrajEnd", traj=training, ending="cancelled", reason=reason, tokens=tokens)
        if self._p.late is not None:
            self._p.late.abandon(reason)


def _most(reasons: Counter[str]) -> str:
    """The most frequent reasons, with how often each one came."""
    named = [f"{n} x {reason[:_REASON_CHARACTERS]}" for reason, n in reasons.most_common(_REASONS)]
    rest = reasons.total() - sum(n for _, n in reasons.most_common(_REASONS))
    return "; ".join([*named, f"{rest} x something else"] if rest else named)
