"""A Gymnasium wrapper that corrupts what a learner sees, and nothing else."""

from __future__ import annotations

from typing import SupportsFloat

import gymnasium
import numpy as np

from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number
from stretto.tabular.gym_spaces import DiscreteEnv
from stretto.tabular.q.corruption import Corruption


class CorruptedSteps(gymnasium.Wrapper[int, int, int, int]):
    """``env`` with discrete observations, seen through ``corruption``: with its chance, a step's reward is
    -``magnitude`` and, unless ``states`` is ``none``, its observation is false: the first state (``next``), or a
    uniform one (``both``). An observation is next state of one step and current state of the following: with false
    ones, up to 1 - (1 - share)^2 of the transitions are corrupted. ``info`` holds ``corrupted`` and the true
    ``observation`` and ``reward``. Hits are drawn from ``seed``, apart from the environment: its course doesn't
    change."""

    def __init__(self, env: DiscreteEnv, corruption: Corruption, seed: int = 0) -> None:
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(f"CorruptedSteps: env must be a Gymnasium environment; got {type(env).__name__}")
        if not isinstance(corruption, Corruption):
            raise ConfigError(f"CorruptedSteps: corruption must be a Corruption; got {corruption!r}")
        super().__init__(env)
        if not isinstance(env.observation_space, gymnasium.spaces.Discrete):
            raise ConfigError(f"CorruptedSteps: env has observations {env.observation_space}; they must be Discrete")
        self.corruption = corruption
        self._first, self._states = int(env.observation_space.start), int(env.observation_space.n)
        self._random = np.random.default_rng(int(number("CorruptedSteps", "seed", seed, 0, whole=True)))

    def step(self, action: int) -> tuple[int, SupportsFloat, bool, bool, dict[str, object]]:
        """One step of the wrapped environment; its observation and reward are false where corruption hits, and ``info``
        holds the true ones."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        hit, fake = self._random.random(2)
        corrupted = bool(hit < self.corruption.share)
        info = {**info, "corrupted": corrupted, "observation": observation, "reward": reward}
        if corrupted:
            reward = -self.corruption.magnitude
            if self.corruption.states != "none":
                observation = self._first + (int(fake * self._states) if self.corruption.states == "both" else 0)
        return observation, reward, terminated, truncated, info
