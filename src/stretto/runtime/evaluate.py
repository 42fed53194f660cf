"""Evaluation: held-out tasks, played on one version. Its trajectories never train and are not in the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stretto.data.identity import evaluation_noise_key
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Environment, Task
from stretto.kernel.events import EventLog
from stretto.rollout.types import SamplingParams
from stretto.runtime.client import RolloutClient, Scoring
from stretto.runtime.failures import Failures
from stretto.runtime.pooled_engine import PooledEngine

_ROUNDING = 1e-6


def succeeded(reward: float | None, threshold: float) -> bool:
    """Whether the reward reaches ``threshold``, rounding apart; none does not."""
    return reward is not None and reward >= threshold - _ROUNDING


class Evaluator:
    """Plays the same held-out tasks each time; noise, if any, is the same too."""

    def __init__(
        self,
        env: Environment,
        tasks: Sequence[Task],
        sampling: SamplingParams,
        temperature: float,
        seed: int,
        scoring: Scoring,
        log: EventLog,
        deadline_s: float,
        keep: Callable[[int, list[tuple[Task, Trajectory]]], None] = lambda version, played: None,
        working: Callable[[str, int, int], None] = lambda what, done, total: None,
        threshold: float = 1.0,
    ) -> None:
        """``keep`` gets each evaluation's tasks and trajectories with the version that they ran on; ``working`` hears
        how many of how many are done; ``threshold``: the reward that counts as a success."""
        self._threshold = threshold
        self._keep, self._working = keep, working
        self._env, self._tasks, self._seed, self._scoring, self._log = env, tasks, seed, scoring, log
        self._sampling = replace(sampling, temperature=temperature)
        self._deadline_s = deadline_s
        self._silent = EventLog(None, lambda: 0.0)
        self._failures = Failures(log.directory)
        self._done = 0
        self._what = ""

    async def run(self, engines: Sequence[PooledEngine], now: Callable[[], float], **more: Any) -> float:
        """Accuracy (share of tasks whose reward reaches the threshold) on the engines' version. All engines must
        hold the same one, and nobody may load weights meanwhile. ``more``: further fields of the Eval event."""
        start = now()
        (version,) = {engine.version for engine in engines}
        assert version is not None
        first = version * len(self._tasks)  # of the version: a resumed run samples what it would have sampled
        self._done, self._what = 0, f"evaluating version {version}"
        self._working(self._what, 0, len(self._tasks))
        results = await asyncio.gather(
            *(
                self._play(-1 - i, evaluation_noise_key(first + i), task, engines[i % len(engines)])
                for i, task in enumerate(self._tasks)
            ),
            return_exceptions=True,
        )
        played = [(task, r) for task, r in zip(self._tasks, results, strict=True) if isinstance(r, Trajectory)]
        errors = [r for r in results if isinstance(r, BaseException)]
        for error in errors:
            if not isinstance(error, Exception):
                raise error
        if errors:
            self._log.emit("Fault", where="evaluation", what=f"{len(errors)} of {len(results)} rollouts failed, "
                           f"counted as wrong; the first: {self._failures.reason(errors[0])}")  # fmt: skip
        self._keep(version, played)
        rewards = [t.reward for _, t in played if t.reward is not None]
        accuracy = sum(succeeded(r, self._threshold) for r in rewards) / len(results)
        self._log.emit(
            "Eval",
            version=version,
            accuracy=accuracy,
            reward=sum(rewards) / len(results),
            n=len(results),
            **({"absent": absent} if (absent := len(results) - len(rewards)) else {}),
            start=self._log.run_time(start),
            **more,
        )
        return accuracy

    async def _play(self, trajectory: int, noise_key: int, task: Task, engine: PooledEngine) -> Trajectory:
        client = RolloutClient(
            trajectory=trajectory, noise_key=noise_key, group=trajectory, engine=engine, sampling=self._sampling,
            seed=self._seed, scoring=self._scoring, log=self._silent, logged=False,
        )  # fmt: skip
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._env.rollout(client, task)
        except (Exception, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # sys.exit and its like end no run
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        finally:
            self._done += 1
            self._working(self._what, self._done, len(self._tasks))
