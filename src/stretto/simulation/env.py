"""Simulated environments: sampled lengths, rewards, latencies and failures."""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Environment, LateClient, Task
from stretto.kernel.errors import StrettoError
from stretto.simulation.costs import CostModel


class SimulatedFailure(StrettoError):
    """A rollout that the model lets fail."""


class SimulatedEnvironment:
    """Prompts of constant length, responses of sampled length, rewards 0 or 1 (simulate)."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._prompt = np.zeros(max(1, costs.simulation.prompt_tokens or 0), np.int32)
        self._prompt.flags.writeable = False

    def bind(self, tokenizer: Any, seed: int) -> None:
        """Needs neither."""

    def task(self, index: int) -> Task:
        """A prompt without content."""
        return Task(index, self._prompt)

    def eval_tasks(self, n: int) -> list[Task]:
        """Nothing to evaluate."""
        return []

    @property
    def epoch_size(self) -> int | None:
        """No epochs."""
        return None

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        """``simulation.turns`` turns of sampled length with sampled latency after each."""
        transcript = client.transcript()
        transcript.observe(task.prompt)
        costs, key = self._costs, client.noise_key
        times = costs.of_trajectory(key)
        for turn in range(costs.simulation.turns):
            await client.generate(transcript, max_new_tokens=times.length(turn))
            wait_s = times.env_s(turn)
            if wait_s > 0:
                await client.sleep(wait_s, "environment")
        if costs.fails(key):
            raise SimulatedFailure("simulation.failure_probability")
        return transcript.finish(costs.reward(key))

    def text(self, trajectory: Trajectory) -> str:
        """There is none."""
        return ""


class DelayedEnvironment:
    """A real environment whose rollouts end after a sampled latency, or fail (rehearse)."""

    def __init__(self, env: Environment, costs: CostModel) -> None:
        self._env, self._costs = env, costs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        """The real rollout, then the sampled latency."""
        trajectory = await self._env.rollout(client, task)
        wait_s = self._costs.env_s(client.noise_key, 0)
        if wait_s > 0:
            await client.sleep(wait_s, "scoring")
        if self._costs.fails(client.noise_key):
            raise SimulatedFailure("simulation.failure_probability")
        return trajectory

    async def late_reward(self, client: LateClient, task: Task, trajectory: Trajectory) -> float | None:
        """The real late reward, after a sampled delay of its own."""
        await client.sleep(self._costs.late_s(client.noise_key), "late reward")
        late: float | None = await self._env.late_reward(client, task, trajectory)  # type: ignore[attr-defined]
        return late
