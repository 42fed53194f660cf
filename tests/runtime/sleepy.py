"""Environments that take their time: before they begin, for a tool, or until others have come far."""

from __future__ import annotations

from typing import ClassVar

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


class Overtaken(Arithmetic):
    """The first prompt's second turn comes once other rollouts have met ``wanted`` versions."""

    newest: ClassVar[int] = 0
    wanted: ClassVar[int] = 8

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        if task.index:
            trajectory = await super().rollout(client, task)
            Overtaken.newest = max(Overtaken.newest, int(trajectory.versions[trajectory.mask].max()))
            return trajectory
        transcript = client.transcript()
        transcript.observe(task.prompt)
        await client.generate(transcript, max_new_tokens=2)
        while Overtaken.newest < self.wanted:
            await client.sleep(0.05, "others")
        transcript.observe(task.prompt)
        await client.generate(transcript, max_new_tokens=2)
        return transcript.finish(1.0)
