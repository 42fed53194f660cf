"""Markov games as PettingZoo environments: all players move at once."""

from __future__ import annotations

from typing import TypeVar

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from stretto.games.markov import MarkovGame
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import index_in, number
from stretto.tabular.sampling import inverse_cdf

T = TypeVar("T")
Infos = dict[str, dict[str, object]]


class ParallelGame(ParallelEnv[str, int, int]):
    """``game`` with agents ``player_0`` ..; each sees the state; rewards are minus the expected costs. It ends by
    truncation after ``horizon`` steps (None: never)."""

    def __init__(self, game: MarkovGame, horizon: int | None = None) -> None:
        self.metadata = {"name": "stretto_markov_game", "render_modes": []}
        self.render_mode = None
        self.game = game
        self.horizon = None if horizon is None else int(number("ParallelGame", "horizon", horizon, 1, whole=True))
        self.possible_agents = [f"player_{i}" for i in range(game.players)]
        self.agents: list[str] = []
        self.observation_spaces = {a: gymnasium.spaces.Discrete(game.states) for a in self.possible_agents}
        self.action_spaces = {
            a: gymnasium.spaces.Discrete(n) for a, n in zip(self.possible_agents, game.actions, strict=True)
        }
        self.rng = np.random.default_rng()
        self.steps = 0
        self.now = 0

    def observation_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """``Discrete(S)``: the state, the same for all players."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Discrete:
        """``Discrete(A_i)``: the actions of player ``agent``."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[dict[str, int], Infos]:
        """Start in a state sampled from ``game.start``, or in s with ``options={"state": s}``; returns (states, infos)
        by player."""
        if seed is not None:
            self.rng = np.random.default_rng(int(number("ParallelGame.reset", "seed", seed, 0, whole=True)))
        given = (options or {}).get("state")
        self.now = (
            inverse_cdf(self.game.start, self.rng.random())
            if given is None
            else index_in("ParallelGame.reset", "state", given, self.game.states)
        )
        self.agents, self.steps = list(self.possible_agents), 0
        return self._all(self.now), self._infos()

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        """Observations, rewards, terminations, truncations, infos. ``ConfigError`` if a player's action is missing or
        unknown."""
        if not self.agents:
            raise ConfigError("ParallelGame.step: call reset() first")
        chosen = []
        for agent, count in zip(self.possible_agents, self.game.actions, strict=True):
            chosen.append(index_in("ParallelGame.step", f"actions[{agent!r}]", actions.get(agent), count))
        joint = int(np.ravel_multi_index(chosen, self.game.actions))
        costs = self.game.costs[:, self.now, joint]
        self.now = inverse_cdf(self.game.transitions[self.now, joint], self.rng.random())
        self.steps += 1
        over = self.steps == self.horizon
        rewards = {a: -float(c) for a, c in zip(self.possible_agents, costs, strict=True)}
        told = (self._all(self.now), rewards, self._all(False), self._all(over), self._infos())
        if over:
            self.agents = []
        return told

    def _all(self, what: T) -> dict[str, T]:
        return dict.fromkeys(self.possible_agents, what)

    def _infos(self) -> Infos:
        return {a: {} for a in self.possible_agents}
