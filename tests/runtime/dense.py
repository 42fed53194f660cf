"""An environment in which even a random model earns something: without it nothing would be learnt."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from stretto.data.trajectory import Ints
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.base import Task
from stretto.envs.verifiers import Score


def dense_reward(tokens: Ints) -> float:
    """A number from 0 to 1 that depends on every token."""
    return float(sum((k + 1) * int(t) for k, t in enumerate(tokens)) % 7) / 6


@dataclass
class Dense(Arithmetic):
    """Arithmetic problems, ``dense_reward`` for any answer."""

    async def own_score(self, client: object, task: Task, tokens: Ints) -> Score:
        return Score(dense_reward(tokens))


@dataclass
class Finite(Dense):
    """Eight problems: they don't fill the last batch of three."""

    @property
    def epoch_size(self) -> int | None:
        return 8


@dataclass
class Jittery(Dense):
    """The same, scored after a wall-clock delay that scrambles the order of completion."""

    async def own_score(self, client: object, task: Task, tokens: Ints) -> Score:
        await asyncio.sleep(0.02 * ((task.index * 7) % 5))
        return Score(dense_reward(tokens))
