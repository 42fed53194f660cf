"""Late rewards in the loop: waits for each that was promised, and says which go into a step.

Owned by the orchestrator. Who waits and who comes back is kept in ``stretto.pool.late``; here are the clock, the tasks
that await ``Environment.late_reward``, and the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stretto.data.counter import mix
from stretto.data.schema import Columns
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Environment, Task
from stretto.envs.verifiers import normalize
from stretto.kernel.clock import Sleep
from stretto.kernel.errors import ConfigError, InvariantError, StrettoError
from stretto.kernel.events import Event, EventLog
from stretto.kernel.metrics import Metric, Section, declare
from stretto.pool.group import Group
from stretto.pool.late import DelayedRewards, PendingReward, with_late
from stretto.runtime.failures import Failures

OWN = declare(
    __name__,
    Metric(Section.LATE, "late/{promised,in_time,returned,dropped,pending}", "trajectories",
           "since the start; pending now", "**exact**: promised is the sum of the rest",
           "many dropped: a longer `objective.lifetime`"),
)  # fmt: skip
_STREAM = 0x1A7E
_MOST_FAILURES = 16
"""So many late rewards that fail, with none that comes between, end the run."""


class LateCall:
    """The ``LateClient`` of one promise. ``waited_s``: what it had waited before a resume."""

    def __init__(self, noise_key: int, seed: int, scoring: Any, waited_s: float) -> None:
        self.noise_key, self._seed, self._scoring, self._credit_s = noise_key, seed, scoring, waited_s

    async def call(self, function: Callable[..., Any], *args: Any, deadline_s: float | None = None) -> Any:
        """Run a function where it can be killed."""
        return await self._scoring.call(function, *args, deadline_s=deadline_s)

    async def sleep(self, seconds: float, what: str) -> None:
        """Wait on the run's clock."""
        left_s = seconds - self._credit_s
        self._credit_s = max(0.0, -left_s)
        if left_s > 0:
            await Sleep(asyncio.get_running_loop(), left_s)
        else:
            await asyncio.sleep(0)

    def uniform(self, *counter: int) -> float:
        """A number in (0, 1) that depends on (seed, ``noise_key``, counter) alone; none that the rollout drew."""
        return ((mix(self._seed, self.noise_key, _STREAM, *counter) >> 11) + 0.5) * 2.0**-53


class LateRewards:
    """All promises of a run. ``late_s``: seconds after which one is given up."""

    def __init__(
        self, env: Environment, *, lifetime: int, log: EventLog, scoring: Any, seed: int, late_s: float
    ) -> None:
        self._env, self._log, self._scoring, self._seed, self._late_s = env, log, scoring, seed, late_s
        self._loop = asyncio.get_running_loop()
        self._failures = Failures(log.directory)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._lost: list[int] = []
        self._failed_in_a_row = 0
        self._fatal: Callable[[BaseException], None] = lambda error: None
        self.queue = DelayedRewards(lifetime)
        self.handlers: dict[str, Callable[[Event], Any]] = {"TrajEnd": self._ended}
        """What it hears of the log: a trajectory that ends otherwise than trained gets no late reward."""

    def __call__(self, event: Event) -> None:
        """Take in an event of the log."""
        handler = self.handlers.get(event["e"])
        if handler is not None:
            handler(event)

    def hear_death(self, on_death: Callable[[BaseException], None]) -> None:
        """Call this when no late reward can be got."""
        self._fatal = on_death

    # promises

    def promised(self, task: Task, trajectory: Trajectory, noise_key: int) -> None:
        """This trajectory is complete, but for a reward that comes later."""
        since = self._log.emit("LatePending", traj=trajectory.id)
        self._wait(task, PendingReward(trajectory, noise_key, since))

    def restore(self, rewards: Iterable[PendingReward], counts: Mapping[str, int]) -> None:
        """Go on with those of a checkpoint, whose ledger was ``counts``; what hasn't matured is asked for anew."""
        self.queue.restore(counts)
        for pending in rewards:
            self._wait(self._env.task(pending.trajectory.group), pending)

    def _wait(self, task: Task, pending: PendingReward) -> None:
        self.queue.add(pending)
        if pending.reward is None:
            self._tasks[pending.trajectory.id] = self._loop.create_task(self._get(task, pending))

    async def _get(self, task: Task, pending: PendingReward) -> None:
        trajectory = pending.trajectory
        waited_s = max(0.0, self._log.now() - pending.since)
        client = LateCall(pending.noise_key, self._seed, self._scoring, waited_s)
        try:
            async with asyncio.timeout(max(0.0, self._late_s - waited_s)) as limit:
                reward = await self._env.late_reward(client, task, trajectory)  # type: ignore[attr-defined]
            result = normalize(reward, f"late_reward of environment {type(self._env).__name__}")
            if result.reward is None:
                raise StrettoError(f"absent: {result.reason}")
        except (InvariantError, ConfigError) as error:
            self._fatal(error)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            reason = self._failures.reason(error)
            if isinstance(error, TimeoutError) and limit.expired():
                reason = f"timeout: deadlines.late_s = {self._late_s:g}"
            self._failed(trajectory.id, reason)
        else:
            self._failed_in_a_row = 0
            if self.queue.mature(trajectory.id, result.reward):
                self._log.emit("LateMatured", traj=trajectory.id, since=pending.since, reward=result.reward)
        finally:
            self._tasks.pop(trajectory.id, None)

    def _failed(self, id: int, reason: str) -> None:
        self._drop([id], reason)
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= _MOST_FAILURES:
            self._fatal(StrettoError(f"{self._failed_in_a_row} late rewards in a row failed; the last one: {reason}. "
                                     "Each one's reason is in its LateDropped event (`stretto log RUN`)"))  # fmt: skip

    # steps

    def join(self, fresh: Columns, version: int) -> tuple[Columns, dict[str, Any]]:
        """The columns of a step that starts at ``version``, with the rows that come back; what its StepStart says."""
        self.settle()
        self._log_dropped(self.queue.expire(version), f"objective.lifetime = {self.queue.lifetime} steps")
        taken = self.queue.take(fresh["trajectory"].tolist())
        columns = with_late(fresh, taken)
        if not taken:
            return columns, {}
        back = taken.returned
        return columns, {"late": {
            "in_time": list(taken.in_time),
            "traj": [p.trajectory.id for p in back],
            "delay": [version - p.trained_at for p in back],
            "tokens": sum(p.trajectory.policy_tokens for p in back),
        }}  # fmt: skip

    def step_ended(self, fresh: Sequence[Group], version: int, skipped: bool) -> dict[str, float]:
        """The step that started at ``version`` is over; ``skipped``: its batch is lost. Returns the ledger so far as
        metrics ``late/<count>``."""
        if skipped:
            self._log_dropped(
                self.queue.step_failed([id for group in fresh for id in group.ids]), "the step was skipped"
            )
        else:
            self.queue.step_ended(fresh, version)
        return OWN.checked({f"late/{name}": float(count) for name, count in self.queue.counts.items()})

    # endings

    def _ended(self, event: Event) -> None:
        """An event is on its way: the log takes another one only when it is through."""
        self._lost += [id for id in event["traj"] if id in self.queue]
        if self._lost:
            self._loop.call_soon(self.settle)

    def settle(self) -> None:
        """Drop those whose trajectories have ended untrained, now."""
        lost, self._lost = self._lost, []
        self._drop(lost, "its trajectory doesn't train")

    def abandon(self, reason: str) -> None:
        """The run ends: nobody waits any longer."""
        self._lost.clear()
        self._drop([p.trajectory.id for p in self.queue.pending()], reason)

    def _drop(self, ids: Iterable[int], reason: str) -> None:
        self._log_dropped(self.queue.drop(ids), reason)

    def _log_dropped(self, ids: list[int], reason: str) -> None:
        if not ids:
            return
        self._log.emit("LateDropped", traj=ids, reason=reason)
        for id in ids:
            task = self._tasks.pop(id, None)
            if task is not None and task is not asyncio.current_task():
                task.cancel()
