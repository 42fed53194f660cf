"""An environment whose answers need a tool that takes very long."""

from __future__ import annotations

from stretto.envs.arithmetic import Arithmetic
from stretto.envs.base import Client, Task
from stretto.envs.verifiers import Score
from stretto.trajectory import Ints


class Sleepy(Arithmetic):
    """Waits for seconds before it scores."""

    async def own_score(self, client: Client, task: Task, tokens: Ints) -> Score:  # type: ignore[override]
        await client.sleep(30.0, "tool")
        return Score(1.0)
