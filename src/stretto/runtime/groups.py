"""Groups while they run: members start, end, fail, are replaced; the group closes and becomes ready, or fails.

Owned by the orchestrator, driven by callbacks: a member's task ends, a deadline passes. Nothing here decides who
starts or trains. Each trajectory that is submitted ends in exactly one way, logged when it happens.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from stretto.control.hooks import Rules
from stretto.data.identity import noise_key
from stretto.data.trajectory import Completion, Trajectory
from stretto.envs.base import Environment, Task
from stretto.envs.verifiers import normalize
from stretto.kernel.errors import ConfigError, InvariantError
from stretto.kernel.events import EventLog, version_runs
from stretto.kernel.timeout_queue import TimeoutQueue
from stretto.kernel.trajectory_events import Ending
from stretto.pool.group import Group
from stretto.runtime.client import RolloutClient
from stretto.runtime.failures import Failures
from stretto.runtime.members import GroupLimits, Member, RunningGroup
from stretto.runtime.pooled_engine import PooledEngine
from stretto.runtime.preemption import leave, owing
from stretto.runtime.saved import SavedGroup


class Groups:
    """All running groups.

    ``make_client(trajectory, noise_key, group, engine, pin, replay, version)`` builds a client; ``ended()`` hears of
    each trajectory that stops running, whatever became of it; ``ready(group)`` takes a finished one;
    ``failed(group_id, reason, why)`` hears of a group that trains nothing, and why how many of its members failed (no
    reason: the filter dropped it, and why); ``fatal(error)`` ends the run; ``promised(task, trajectory, noise_key)``
    hears of one that waits for a late reward.
    """

    def __init__(
        self,
        *,
        env: Environment,
        limits: GroupLimits,
        rules: Rules,
        log: EventLog,
        version: Callable[[], int],
        make_client: Callable[..., RolloutClient],
        ended: Callable[[], None],
        ready: Callable[[Group], None],
        failed: Callable[[int, str, Counter[str]], None],
        fatal: Callable[[BaseException], None],
        promised: Callable[[Task, Trajectory, int], None] | None = None,
    ) -> None:
        self._promised = promised
        self._env, self._limits, self._rules, self._log = env, limits, rules, log
        self._version, self._make_client = version, make_client
        self._ended, self._ready, self._failed, self._fatal = ended, ready, failed, fatal
        self.running: dict[int, RunningGroup] = {}
        self.next_trajectory = 0
        self._loop = asyncio.get_running_loop()
        self._failures = Failures(log.directory)
        self._member_timeouts = TimeoutQueue(self._loop, limits.rollout_s, self._members_late)
        self._group_timeouts = TimeoutQueue(self._loop, limits.group_s, self._group_late)

    # starting

    def start(self, task: Task, engine: PooledEngine, version: int, pin: int | None) -> None:
        """Submit a group: all its members start now."""
        group = RunningGroup(task.index, task, version, engine, pin, created=self._limits.size)
        ids = self._number(self._limits.size)
        self._open(group)
        self._log.emit("Submitted", group=group.id, task=task.index, traj=ids, engine=engine.name, version=version,
                       **group.pin_field)  # fmt: skip
        for k, trajectory in enumerate(ids):
            self._start_member(group, trajectory, noise_key(group.id, k), ())

    def restart(self, task: Task, engine: PooledEngine, version: int, pin: int | None, saved: SavedGroup) -> None:
        """Go on with a group of a checkpoint: its open members replay what they had."""
        group = RunningGroup(task.index, task, version, engine, pin, replaced=saved.replaced, created=saved.created)
        self._open(group)
        self._log.emit("Restarted", group=group.id, traj=[m.trajectory for m in saved.open], engine=engine.name,
                       version=version, **group.pin_field)  # fmt: skip
        for m in saved.members:
            if m.result is None:
                self._start_member(group, m.trajectory, m.noise_key, m.completions)
            else:
                client = self._make_client(m.trajectory, m.noise_key, group.id, engine, pin, (), version)
                done = Member(m.trajectory, client, result=m.result, over=True, tokens=m.result.policy_tokens)
                group.members.append(done)

    def _number(self, n: int) -> list[int]:
        """Ids of the next ``n`` trajectories of the run."""
        first = self.next_trajectory
        self.next_trajectory += n
        return list(range(first, first + n))

    def _open(self, group: RunningGroup) -> None:
        if group.pin is not None:
            group.engine.promise(group.pin)
        self.running[group.id] = group
        group.until = self._loop.time() + self._limits.group_s
        group.deadlines.append(self._member_timeouts.add(group))
        group.deadline = self._group_timeouts.add(group)

    def _start_member(self, group: RunningGroup, trajectory: int, key: int, replay: Sequence[Completion]) -> None:
        client = self._make_client(trajectory, key, group.id, group.engine, group.pin, replay, group.version)
        member = Member(trajectory, client, start=self._loop.time())
        group.members.append(member)
        group.open += 1
        member.task = self._loop.create_task(self._play(group, member))

    async def _play(self, group: RunningGroup, member: Member) -> None:
        """One rollout and what its end sets off, in one task."""
        try:
            try:
                trajectory = await self._env.rollout(member.client, group.task)
            except asyncio.CancelledError:
                if not member.over:
                    self._member_failed(group, member, "cancelled by its environment")
            except (InvariantError, ConfigError):
                if not member.over:
                    raise
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # sys.exit and its like, too
                # given up before: what it still says is not used; its engine died: that ends the run, and it with it
                if not member.over and not member.client.engine.failed.done():
                    self._member_failed(group, member, self._failures.reason(error))
            else:
                if not member.over:
                    self._member_ok(group, member, trajectory)
        except Exception as broken:
            self._fatal(broken)

    # ending of a member

    def _member_ok(self, group: RunningGroup, member: Member, trajectory: Trajectory) -> None:
        if not isinstance(trajectory, Trajectory) or trajectory.id != member.trajectory:
            raise InvariantError(
                f"environment {type(self._env).__name__}: rollout of trajectory {member.trajectory} must return the "
                f"trajectory of its own client.transcript(), got {trajectory!r}"
            )
        self._close_member(group, member)
        member.result = trajectory
        finite = np.isfinite(trajectory.logprobs)
        if np.count_nonzero(finite) < len(finite):
            self._leave_out(trajectory, trajectory.mask & ~finite, member.client.engine.name)
        trajectory.train_only(self._rules.loss_mask.keep(trajectory.policy_tokens, trajectory.turns))
        sampled = trajectory.versions[trajectory.mask]
        tokens, runs = len(sampled), version_runs(sampled)
        member.tokens = tokens
        if runs and runs[0][0] < group.version:
            raise InvariantError(
                f"trajectory {trajectory.id}: a token of version {runs[0][0]} in a group dispatched at {group.version}"
            )
        result = normalize(trajectory.reward, f"environment {type(self._env).__name__}")
        reward = trajectory.reward = result.reward
        if reward is None:
            trajectory.info.setdefault("reward_absent", result.reason)
            if (error := trajectory.info.pop("reward_error", None)) is not None:
                trajectory.info["reward_absent"] = self._failures.reason(error)
        completions, log = member.client.completions, self._log
        log.write({
            "e": "TrajDone",
            "t": log.now(),
            "traj": trajectory.id, "group": group.id,
            "start": log.run_time(member.start),
            "tokens": tokens,
            "length": len(trajectory.tokens),
            "versions": runs,
            "turns": trajectory.turns,
            "reward": reward,
            "finish": completions[-1].finish if completions else "none",
            "terminated": trajectory.terminated,
            "truncated": trajectory.truncated,
            **({"rewards": parts} if (parts := trajectory.info.get("rewards")) else {}),
        })  # fmt: skip
        if reward is None:
            self._lose(group, member, str(trajectory.info.get("reward_absent", "no reward")), tokens)
        elif not tokens:
            self._lose(group, member, "no policy token", 0)
        else:
            if trajectory.late:
                if self._promised is None:
                    raise ConfigError(
                        f"environment {type(self._env).__name__}: trajectory {trajectory.id} promises a late reward, "
                        "but the objective takes none. Use objective.name = 'rac', or let it finish with late=False"
                    )
                self._promised(group.task, trajectory, member.client.noise_key)
            self._maybe_close(group)

    def _leave_out(self, trajectory: Trajectory, bad: NDArray[np.bool_], engine: str) -> None:
        """These tokens leave training: their log-probabilities aren't finite."""
        n = int(np.count_nonzero(bad))
        if n:
            trajectory.mask = trajectory.mask & ~bad
            self._log.emit("Fault", where=engine, what=f"trajectory {trajectory.id}: {n} non-finite log-probabilities; "
                           "these tokens leave training")  # fmt: skip

    def _member_failed(self, group: RunningGroup, member: Member, reason: str) -> None:
        self._close_member(group, member)
        self._lose(group, member, reason, sum(len(c.tokens) for c in member.client.completions))

    def _lose(self, group: RunningGroup, member: Member, reason: str, tokens: int) -> None:
        self._fail(group, member, reason, tokens)
        self._replace(group, member)
        self._maybe_close(group)

    def _replace(self, group: RunningGroup, member: Member) -> None:
        """Another trajectory in the place of one that failed, while the group has time and replacements left."""
        time_left = self._loop.time() < group.until - 1e-6
        if time_left and group.replaced < self._limits.replace_failed * self._limits.size:
            group.replaced += 1
            (trajectory,), key = self._number(1), noise_key(group.id, group.created)
            group.created += 1
            self._log.emit("Submitted", group=group.id, task=group.task.index, traj=[trajectory],
                           engine=group.engine.name, version=group.version, replaces=member.trajectory,
                           **group.pin_field)  # fmt: skip
            self._start_member(group, trajectory, key, ())
            group.deadlines.append(self._member_timeouts.add(group))

    def _fail(self, group: RunningGroup, member: Member, reason: str, tokens: int) -> None:
        member.result = None
        group.reasons[reason] += 1
        self._log.emit("TrajEnd", traj=[member.trajectory], ending=Ending.FAILED, reason=reason, tokens=tokens)

    def _close_member(self, group: RunningGroup, member: Member) -> None:
        member.over = True
        leave(member.client)
        group.open -= 1
        self._ended()

    def _members_late(self, group: RunningGroup) -> None:
        """Members that have run for ``rollout_s`` fail, and are replaced like others."""
        due = self._loop.time() - self._limits.rollout_s + 1e-9
        late = [m for m in group.members if not m.over and m.start <= due]
        for member, reason in zip(late, self._stop(group, late, "rollout_s", self._limits.rollout_s), strict=True):
            self._fail(group, member, reason, 0)
        for member in late:
            self._replace(group, member)
        self._maybe_close(group)

    def _stop(self, group: RunningGroup, late: Sequence[Member], setting: str, seconds: float) -> list[str]:
        """Stop members that are late; returns why each failed: the deadline, and who owed it an answer."""
        reasons = [f"timeout: deadlines.{setting} = {seconds:g}; it waited for {owing(m.client)}" for m in late]
        for member in late:
            self._close_member(group, member)
            if member.task is not None:
                member.task.cancel()
        return reasons

    # ending of a group

    def _group_late(self, group: RunningGroup) -> None:
        late = [m for m in group.members if not m.over]
        for member, reason in zip(late, self._stop(group, late, "group_s", self._limits.group_s), strict=True):
            self._fail(group, member, reason, 0)
        self._maybe_close(group)

    def _stop_deadlines(self, group: RunningGroup) -> None:
        for key in group.deadlines:
            self._member_timeouts.drop(key)
        self._group_timeouts.drop(group.deadline)

    def _redeem(self, group: RunningGroup) -> None:
        """No member of the group will sample again."""
        if group.pin is not None and not group.engine.failed.done():
            group.engine.redeem(group.pin)

    def _maybe_close(self, group: RunningGroup) -> None:
        if group.open or group.id not in self.running:
            return
        self._stop_deadlines(group)
        del self.running[group.id]
        self._redeem(group)
        valid = [m.result for m in group.members if m.result is not None]
        valid.sort(key=attrgetter("id"))
        if len(valid) < self._limits.least_valid:
            reason = f"group {group.id} has {len(valid)} valid members, {self._limits.least_valid} are needed"
            self._end_group(group, valid, Ending.FAILED, reason)
            self._failed(group.id, reason, group.reasons)
            return
        dropped = self._rules.filter.drop([float(t.reward) for t in valid if t.reward is not None])
        if dropped is not None:
            self._end_group(group, valid, Ending.FILTERED, dropped)
            self._failed(group.id, "", Counter({dropped: 1}))
            return
        version = self._version()
        self._log.emit("GroupReady", group=group.id, version=version, traj=[t.id for t in valid],
                       tokens=sum(m.tokens for m in group.members if m.result is not None))  # fmt: skip
        self._ready(Group.of(group.id, valid, group.version, version))

    def _end_group(self, group: RunningGroup, valid: list[Trajectory], ending: str, reason: str) -> None:
        self._log.emit("TrajEnd", traj=[t.id for t in valid], ending=ending, reason=reason,
                       tokens=sum(t.policy_tokens for t in valid), group=group.id, group_over=True)  # fmt: skip

    def cancel_all(self, reason: str) -> None:
        """The run ends: everything that still runs is cancelled and logged so."""
        for group in list(self.running.values()):
            self._stop_deadlines(group)
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
            self._log.emit("TrajEnd", traj=ids, ending=Ending.CANCELLED, reason=reason, tokens=tokens, group=group.id,
                           group_over=True)  # fmt: skip
            self._redeem(group)
        self.running.clear()
