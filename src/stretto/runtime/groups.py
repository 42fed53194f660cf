"""Groups while they run: members start, end, fail, are replaced; the group closes and becomes ready, or fails.

Owned by the orchestrator, driven by callbacks: a member's task ends, a deadline passes. Nothing here decides who
starts or trains. Each trajectory that is submitted ends in exactly one way, logged when it happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np

from stretto.control.hooks import Filter
from stretto.envs.base import Environment, Task
from stretto.errors import ConfigError, InvariantError
from stretto.runtime.client import RolloutClient
from stretto.runtime.events import EventLog, version_runs
from stretto.runtime.members import MEMBERS, GroupLimits, Member, RunningGroup
from stretto.runtime.workers.base import EngineHandle
from stretto.trajectory import Completion, Group, Trajectory


class Groups:
    """All running groups.

    ``make_client(trajectory, group, engine, pin, replay)`` builds a client; ``ended()`` hears of each trajectory
    that stops running, whatever became of it; ``ready(group)`` takes a finished one;
    ``failed(group_id, reason)`` hears of a group that trains nothing; ``fatal(error)`` ends the run.
    """

    def __init__(
        self,
        *,
        env: Environment,
        limits: GroupLimits,
        rule: Filter,
        log: EventLog,
        version: Callable[[], int],
        make_client: Callable[..., RolloutClient],
        ended: Callable[[], None],
        ready: Callable[[Group], None],
        failed: Callable[[int, str], None],
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._env, self._limits, self._rule, self._log = env, limits, rule, log
        self._version, self._make_client = version, make_client
        self._ended, self._ready, self._failed, self._fatal = ended, ready, failed, fatal
        self.running: dict[int, RunningGroup] = {}
        self._loop = asyncio.get_running_loop()

    # starting

    def start(self, task: Task, engine: EngineHandle, version: int, pin: int | None) -> None:
        """Submit a group: all its members start now."""
        group = RunningGroup(task.index, task, version, engine, pin, created=self._limits.size)
        ids = [group.id * MEMBERS + k for k in range(self._limits.size)]
        self._log.emit("Submitted", group=group.id, task=task.index, traj=ids, engine=engine.name, version=version)
        self._open(group)
        for trajectory in ids:
            self._start_member(group, trajectory, ())

    def restart(
        self,
        task: Task,
        engine: EngineHandle,
        version: int,
        pin: int | None,
        done: Sequence[Trajectory],
        open_: dict[int, list[Completion]],
        replaced: int,
        created: int,
    ) -> None:
        """Go on with a group of a checkpoint: ``done`` members are finished, ``open_`` ones replay what they had."""
        group = RunningGroup(task.index, task, version, engine, pin, replaced=replaced, created=created)
        self._log.emit("Restarted", group=group.id, traj=list(open_), engine=engine.name, version=version)
        self._open(group)
        for trajectory in done:
            client = self._make_client(trajectory.id, group.id, engine, pin, ())
            group.members.append(Member(trajectory.id, client, result=trajectory, over=True))
        for trajectory_id, replay in open_.items():
            self._start_member(group, trajectory_id, replay)

    def _open(self, group: RunningGroup) -> None:
        self.running[group.id] = group
        group.timers = [
            self._loop.call_later(self._limits.rollout_s, self._members_late, group),
            self._loop.call_later(self._limits.group_s, self._group_late, group),
        ]

    def _start_member(self, group: RunningGroup, trajectory: int, replay: Sequence[Completion]) -> None:
        client = self._make_client(trajectory, group.id, group.engine, group.pin, replay)
        member = Member(trajectory, client, start=self._loop.time())
        group.members.append(member)
        group.open += 1
        member.task = self._loop.create_task(self._env.rollout(client, group.task))
        member.task.add_done_callback(lambda task: self._member_done(group, member, task))

    # ending of a member

    def _member_done(self, group: RunningGroup, member: Member, task: asyncio.Task[Trajectory]) -> None:
        if member.over:  # it was given up before; what it still says is not used
            if not task.cancelled():
                task.exception()
            return
        if task.cancelled():
            self._member_failed(group, member, "cancelled by its environment")
            return
        error = task.exception()
        if error is None:
            try:
                self._member_ok(group, member, task.result())
            except (InvariantError, ConfigError) as broken:
                self._fatal(broken)
        elif isinstance(error, InvariantError | ConfigError):
            self._fatal(error)
        elif group.engine.failed.done():
            pass  # the engine died: that ends the run, and its members with it
        else:
            self._member_failed(group, member, f"{type(error).__name__}: {error}")

    def _member_ok(self, group: RunningGroup, member: Member, trajectory: Trajectory) -> None:
        if not isinstance(trajectory, Trajectory) or trajectory.id != member.trajectory:
            raise InvariantError(
                f"environment {type(self._env).__name__}: rollout of trajectory {member.trajectory} must return the "
                f"trajectory of its own client.transcript(), got {trajectory!r}"
            )
        self._close_member(group, member)
        member.result = trajectory
        bad = ~np.isfinite(trajectory.logp) & trajectory.mask
        if bad.any():
            trajectory.mask = trajectory.mask & ~bad
            self._log.emit("Fault", where=group.engine.name, what=f"trajectory {trajectory.id}: {int(bad.sum())} "
                           "non-finite log-probabilities; these tokens leave training")  # fmt: skip
        sampled = trajectory.versions[trajectory.mask]
        if len(sampled) and sampled[0] < group.version:
            raise InvariantError(
                f"trajectory {trajectory.id}: a token of version {sampled[0]} in a group dispatched at {group.version}"
            )
        reward = trajectory.reward
        if reward is not None and not np.isfinite(reward):
            reward = trajectory.reward = None
            trajectory.info["reward_absent"] = "the reward is not a finite number"
        completions = member.client.completions
        self._log.emit(
            "TrajDone",
            traj=trajectory.id,
            group=group.id,
            start=self._log.run_time(member.start),
            tokens=len(sampled),
            length=len(trajectory.tokens),
            versions=version_runs(sampled),
            turns=trajectory.turns,
            reward=None if reward is None else float(reward),
            finish=completions[-1].finish if completions else "none",
            terminated=trajectory.terminated,
            truncated=trajectory.truncated,
        )
        if reward is None:
            self._lose(group, member, str(trajectory.info.get("reward_absent", "no reward")), len(sampled))
        elif not len(sampled):
            self._lose(group, member, "no policy token", 0)
        else:
            self._maybe_close(group)

    def _member_failed(self, group: RunningGroup, member: Member, reason: str) -> None:
        self._close_member(group, member)
        self._lose(group, member, reason, sum(len(c.tokens) for c in member.client.completions))

    def _lose(self, group: RunningGroup, member: Member, reason: str, tokens: int, replace: bool = True) -> None:
        member.result = None
        self._log.emit("TrajEnd", traj=[member.trajectory], ending="failed", reason=reason, tokens=tokens)
        if replace and group.replaced < self._limits.replace_failed * self._limits.size:
            group.replaced += 1
            trajectory = group.id * MEMBERS + group.created
            group.created += 1
            self._log.emit("Submitted", group=group.id, task=group.task.index, traj=[trajectory],
                           engine=group.engine.name, version=group.version, replaces=member.trajectory)  # fmt: skip
            self._start_member(group, trajectory, ())
            group.timers.append(self._loop.call_later(self._limits.rollout_s, self._members_late, group))
        else:
            self._maybe_close(group)

    def _close_member(self, group: RunningGroup, member: Member) -> None:
        member.over = True
        group.open -= 1
        self._ended()
        if group.pin is not None:
            group.engine.release([member.trajectory])

    def _members_late(self, group: RunningGroup) -> None:
        """Members that have run for ``rollout_s`` fail; they aren't replaced, their time is gone."""
        due = self._loop.time() - self._limits.rollout_s + 1e-9
        late = [m for m in group.members if not m.over and m.start <= due]
        for member in late:
            self._close_member(group, member)
            if member.task is not None:
                member.task.cancel()
        for member in late:
            self._lose(group, member, f"timeout: deadlines.rollout_s = {self._limits.rollout_s:g}", 0, replace=False)

    # ending of a group

    def _group_late(self, group: RunningGroup) -> None:
        late = [m for m in group.members if not m.over]
        for member in late:
            self._close_member(group, member)
            if member.task is not None:
                member.task.cancel()
            member.result = None
        ids = [m.trajectory for m in late]
        self._log.emit("TrajEnd", traj=ids, ending="failed", reason=f"timeout: deadlines.group_s = "
                       f"{self._limits.group_s:g}", tokens=0)  # fmt: skip
        self._maybe_close(group)

    def _stop_timers(self, group: RunningGroup) -> None:
        for timer in group.timers:
            timer.cancel()

    def _maybe_close(self, group: RunningGroup) -> None:
        if group.open or group.id not in self.running:
            return
        self._stop_timers(group)
        del self.running[group.id]
        valid = sorted((m.result for m in group.members if m.result is not None), key=lambda t: t.id)
        if len(valid) < self._limits.least_valid:
            reason = f"group {group.id} has {len(valid)} valid members, {self._limits.least_valid} are needed"
            self._end_group(group, valid, "failed", reason)
            self._failed(group.id, reason)
            return
        dropped = self._rule.drop([float(t.reward) for t in valid if t.reward is not None])
        if dropped is not None:
            self._end_group(group, valid, "filtered", dropped)
            self._failed(group.id, "")
            return
        version = self._version()
        for trajectory in valid:
            trajectory.version_complete = version
        self._log.emit("GroupReady", group=group.id, version=version, traj=[t.id for t in valid],
                       tokens=sum(t.policy_tokens for t in valid))  # fmt: skip
        self._ready(Group(group.id, valid, group.version, version))

    def _end_group(self, group: RunningGroup, valid: list[Trajectory], ending: str, reason: str) -> None:
        self._log.emit("TrajEnd", traj=[t.id for t in valid], ending=ending, reason=reason,
                       tokens=sum(t.policy_tokens for t in valid), group=group.id, group_over=True)  # fmt: skip

    def cancel_all(self, reason: str) -> None:
        """The run ends: everything that still runs is cancelled and logged so."""
        for group in list(self.running.values()):
            self._stop_timers(group)
            ids, tokens = [], 0
            for member in group.members:
                if not member.over:
                    self._close_member(group, member)
                    ids.append(member.trajectory)
                    if member.task is not None:
                        member.task.cancel()
                elif member.result is not None:
                    ids.append(member.trajectory)
                    tokens += member.result.policy_tokens
            self._log.emit("TrajEnd", traj=ids, ending="cancelled", reason=reason, tokens=tokens, group=group.id,
                           group_over=True)  # fmt: skip
        self.running.clear()
