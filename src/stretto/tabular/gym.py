"""Tabular decision processes as Gymnasium environments, and back."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from stretto.errors import ConfigError
from stretto.tabular.arguments import discount, number, place
from stretto.tabular.mdp import MDP
from stretto.tabular.sampling import invert


class TabularEnv(gymnasium.Env[Any, Any]):
    """``mdp`` as an environment with discrete spaces: observation = state, reward = its mean plus ``noise`` N(0,1).
    It never terminates by itself; ``horizon``: truncated after so many steps (None: never). ``info`` of a step holds
    ``mean_reward``."""

    def __init__(self, mdp: MDP, noise: float = 0.0, horizon: int | None = None) -> None:
        self.mdp = mdp
        self.noise = number("TabularEnv", "noise", noise, 0)
        self.horizon = None if horizon is None else int(number("TabularEnv", "horizon", horizon, 1, whole=True))
        self.observation_space = gymnasium.spaces.Discrete(mdp.states)
        self.action_space = gymnasium.spaces.Discrete(mdp.actions)
        self.state: int | None = None
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """First state from ``mdp.start``; ``options``: {"state": s} starts there."""
        super().reset(seed=seed)
        given = (options or {}).get("state")
        self.steps = 0
        if given is None:
            self.state = int(invert(self.mdp.start, self.np_random.random()))
        else:
            self.state = self._checked(given, self.mdp.states, "state")
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Next state, reward, False, truncated, info. ``ConfigError`` before ``reset`` or for an unknown action."""
        if self.state is None:
            raise ConfigError("TabularEnv.step: call reset() first")
        action = self._checked(action, self.mdp.actions, "action")
        mean = float(self.mdp.rewards[self.state, action])
        reward = mean + self.noise * float(self.np_random.standard_normal()) if self.noise else mean
        self.state = int(invert(self.mdp.moves[self.state, action], self.np_random.random()))
        self.steps += 1
        return self.state, reward, False, self.steps == self.horizon, {"mean_reward": mean}

    @staticmethod
    def _checked(value: Any, count: int, name: str) -> int:
        try:
            return place("TabularEnv", name, value, count)
        except ConfigError:
            raise ConfigError(f"TabularEnv: {name} = {value} must be a whole number from 0 to {count - 1}") from None


def read_mdp(env: Any, gamma: float) -> MDP:
    """The MDP of a Gymnasium environment that publishes its table as ``env.unwrapped.P[s][a]`` = [(probability, next
    state, reward, terminated)], as FrozenLake, Taxi and CliffWalking do. Where an episode ends the process goes to one
    more state, the last, which pays nothing and stays; rewards become means over next states. Start: the
    environment's ``initial_state_distrib`` (without one: uniform). ``ConfigError`` if there is no such table."""
    discount("read_mdp", gamma)
    base = env.unwrapped
    table = getattr(base, "P", None)
    spaces = (env.observation_space, env.action_space)
    if table is None or not all(isinstance(s, gymnasium.spaces.Discrete) for s in spaces):
        raise ConfigError(
            f"read_mdp: env {type(base).__name__} publishes no table P over discrete spaces; build an MDP from arrays, "
            "or learn from its steps"
        )
    states, actions = (int(s.n) for s in spaces)
    moves, rewards = np.zeros((states + 1, actions, states + 1)), np.zeros((states + 1, actions))
    moves[states, :, states] = 1
    for s in range(states):
        for a in range(actions):
            for probability, after, reward, ended in table[s][a]:
                moves[s, a, states if ended else after] += probability
                rewards[s, a] += probability * reward
    law = getattr(base, "initial_state_distrib", None)
    start = np.append(np.full(states, 1 / states) if law is None else np.asarray(law, np.float64), 0.0)
    return MDP(moves, rewards, gamma, start)
