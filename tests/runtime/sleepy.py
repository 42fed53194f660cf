"""An environment whose answers need a tool that takes very long."""

from __future__ import annotations

from stretto.data.trajectory import Ints, Trajectory
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.base import Client, Task
from stretto.envs.verifiers import Score


class Early(Arithmetic):
    """Waits before the first token, as an environment does that is reset first; some rollouts fail at their end."""

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        await client.sleep(8.0 * client.uniform(7), "reset")
        trajectory = await super().rollout(client, task)
        if client.uniform(8) < 0.2:
            raise RuntimeError("it failed late")
        return trajectory


class Sleepy(Arithmetic):
    """Waits for seconds before it scores."""

    async def own_score(self, client: Client, task: Task, tokens: Ints) -> Score:  # type: ignore[override]
        await client.sleep(30.0, "tool")
        return Score(1.0)
