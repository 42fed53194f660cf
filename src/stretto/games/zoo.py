"""Markov games as PettingZoo environments, in which all players move at once; and such environments for learners that
take what all see, do and get in tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

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


class Group(Generic[T]):
    """A PettingZoo ``ParallelEnv`` with discrete actions as ``foraging.outside.play`` takes an environment: tuples in
    the order of ``possible_agents``. An agent that leaves before the others keeps its last observation and gets nothing
    more. The group's episode has ended once all agents' have, or is cut once none is left. ``ConfigError`` if an
    agent's action space isn't ``Discrete`` from 0 on."""

    def __init__(self, env: ParallelEnv[str, T, int]) -> None:
        self.env = env
        self.agents = list(env.possible_agents)
        spaces = [env.action_space(agent) for agent in self.agents]
        for agent, space in zip(self.agents, spaces, strict=True):
            if not isinstance(space, gymnasium.spaces.Discrete) or space.start != 0:
                raise ConfigError(f"Group: the action space of {agent} is {space}; it must be Discrete, from 0 on")
        self.action_space = gymnasium.spaces.Tuple(spaces)
        self._seen: dict[str, T] = {}
        self._ended: set[str] = set()

    def reset(self, *, seed: int | None = None) -> tuple[Sequence[T], object]:
        """Observations of all agents, infos by agent."""
        self._seen, infos = self.env.reset(seed=seed)
        self._ended = set()
        return self._all(), infos

    def step(self, actions: Sequence[int]) -> tuple[Sequence[T], Sequence[float], bool, bool, object]:
        """All act at once, in the order of ``agents``: observations, rewards, ended, cut, infos by agent.
        ``ConfigError`` unless there is an action for each agent."""
        if len(actions) != len(self.agents):
            raise ConfigError(f"Group.step: actions = {list(actions)} must be {len(self.agents)}, one for each agent")
        chosen = dict(zip(self.agents, actions, strict=True))
        told = self.env.step({agent: chosen[agent] for agent in self.env.agents})
        seen, rewards, ended, _, infos = told
        self._seen = {**self._seen, **seen}
        self._ended |= {agent for agent, over in ended.items() if over}
        over = self._ended == set(self.agents)
        return (
            self._all(),
            [float(rewards.get(a, 0.0)) for a in self.agents],
            over,
            not (over or self.env.agents),
            infos,
        )

    def _all(self) -> list[T]:
        return [self._seen[agent] for agent in self.agents]
