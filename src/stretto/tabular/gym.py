"""Tabular decision processes as Gymnasium environments, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import ArrayLike

from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import discount, index_in, number, probabilities
from stretto.tabular.gym_check import Outcome, Table, play
from stretto.tabular.gym_spaces import DiscreteEnv, discrete
from stretto.tabular.mdp import MDP
from stretto.tabular.sampling import inverse_cdf

T = TypeVar("T")
Keyed = Mapping[int, T] | Sequence[T]
"""By whole numbers: a dictionary or a list."""
Published = Keyed[Keyed[Sequence[tuple[float, int, float, bool]]]]
"""P[s][a] = [(probability, next state, reward, terminated)]."""


class TabularEnv(DiscreteEnv):
    """``mdp`` as an environment with discrete spaces: observation = state, reward = its mean plus ``noise`` N(0,1).
    ``ends`` marks states [S] (bool) that end an episode when they are entered (``mdp.absorbing`` finds those of a table
    that ``read_mdp`` read); None: it never terminates. ``horizon``: truncated after so many steps (None: never).
    ``info`` of a step holds ``mean_reward``."""

    def __init__(self, mdp: MDP, noise: float = 0.0, horizon: int | None = None, ends: ArrayLike | None = None) -> None:
        self.mdp = mdp
        self.ends = np.zeros(mdp.states, bool) if ends is None else np.asarray(ends)
        if self.ends.shape != (mdp.states,) or self.ends.dtype != bool:
            raise ConfigError(f"TabularEnv: ends must mark states by True and False, one for each of {mdp.states}")
        self.noise = number("TabularEnv", "noise", noise, 0)
        self.horizon = None if horizon is None else int(number("TabularEnv", "horizon", horizon, 1, whole=True))
        self.observation_space = gymnasium.spaces.Discrete(mdp.states)
        self.action_space = gymnasium.spaces.Discrete(mdp.actions)
        self.state: int | None = None
        self.steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[int, dict[str, object]]:
        """Start in a state sampled from ``mdp.start``, or in s with ``options={"state": s}``; returns (state, {})."""
        super().reset(seed=seed)
        given = (options or {}).get("state")
        self.steps = 0
        if given is None:
            self.state = inverse_cdf(self.mdp.start, self.np_random.random())
        else:
            self.state = self._checked(given, self.mdp.states, "state")
        return self.state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
        """Next state, reward, terminated, truncated, info. ``ConfigError`` before ``reset``, after an episode's end, or
        for an unknown action."""
        if self.state is None or self.ends[self.state]:
            raise ConfigError("TabularEnv.step: call reset() first")
        action = self._checked(action, self.mdp.actions, "action")
        mean = float(self.mdp.rewards[self.state, action])
        reward = mean + self.noise * float(self.np_random.standard_normal()) if self.noise else mean
        self.state = inverse_cdf(self.mdp.transitions[self.state, action], self.np_random.random())
        self.steps += 1
        ended = bool(self.ends[self.state])
        return self.state, reward, ended, self.steps == self.horizon, {"mean_reward": mean}

    @staticmethod
    def _checked(value: object, count: int, name: str) -> int:
        try:
            return index_in("TabularEnv", name, value, count)
        except ConfigError:
            raise ConfigError(f"TabularEnv: {name} = {value} must be a whole number from 0 to {count - 1}") from None


def read_mdp(env: DiscreteEnv, gamma: float, start: ArrayLike | None = None, check: int = 10_000) -> MDP:
    """The MDP of a Gymnasium environment that publishes its table as ``env.unwrapped.P[s][a]`` = [(probability, next
    state, reward, terminated)], as FrozenLake, Taxi and CliffWalking do. State i is the observation
    ``observation_space.start`` + i, and so with actions. Where an episode ends the process goes to one more state, the
    last, which pays nothing and stays; a time limit is no part of it; rewards become means over next states.

    ``start`` [S]: law of the first state; None: the environment's ``initial_state_distrib``, else the one that its
    resets show. ``check``: so many steps of a copy, wrappers included, are compared with the table; 0 trusts it.
    ``ConfigError`` if there is no such table over Discrete spaces, or if it isn't what the environment plays.
    """
    discount("read_mdp", gamma)
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"read_mdp: env is {type(env).__name__}, not a Gymnasium environment (one, not a vector)")
    base = env.unwrapped
    where = f"read_mdp: env {type(base).__name__}"
    table: Published | None = getattr(base, "P", None)
    if table is None:
        raise ConfigError(
            f"{where} publishes no table P over discrete spaces; build an MDP from arrays, or learn from its steps"
        )
    observations = discrete(f"{where} has observations", env.observation_space)
    choices = discrete(f"{where} has actions", env.action_space)
    if getattr(base, "fickle_passenger", False):
        raise ConfigError(f"{where}: fickle_passenger is no part of its table P: leave it out")
    outcomes = _outcomes(where, table, observations, choices)
    states, actions = len(outcomes), len(outcomes[0])
    law = getattr(base, "initial_state_distrib", None) if start is None else start
    law = None if law is None else probabilities("read_mdp", "start", law, (states,))
    steps = int(number("read_mdp", "check", check, 0, whole=True))
    if steps:
        law = play(where, env, (int(observations.start), int(choices.start)), outcomes, law, steps)
    transitions, rewards = np.zeros((states + 1, actions, states + 1)), np.zeros((states + 1, actions))
    transitions[states, :, states] = 1
    for s, row in enumerate(outcomes):
        for a, found in enumerate(row):
            for (after, ended, reward), probability in found.items():
                transitions[s, a, states if ended else after] += probability
                rewards[s, a] += probability * reward
    return MDP(transitions, rewards, gamma, np.append(np.full(states, 1 / states) if law is None else law, 0.0))


def _outcomes(where: str, table: Published, observations: Discrete, actions: Discrete) -> Table:
    """The table counted from 0; outcomes that are alike are one."""
    first, rows = _rows(where, table, observations, "state")
    out: Table = []
    for row in rows:
        out.append([])
        for entries in _rows(where, row, actions, "action")[1]:
            found: dict[Outcome, float] = {}
            for probability, after, reward, ended in entries:
                at = int(after) - first
                if not 0 <= at < len(rows):
                    raise ConfigError(f"{where}: its table P leads to state {after}, which {observations} doesn't hold")
                key = (at, bool(ended), float(reward))
                found[key] = found.get(key, 0.0) + float(probability)
            out[-1].append(found)
    return out


def _rows(where: str, table: Keyed[T], space: Discrete, what: str) -> tuple[int, list[T]]:
    """The number that the table's first row has, and its rows, one for each value of ``space``."""
    known = set(table) if isinstance(table, Mapping) else set(range(len(table)))
    for first in (int(space.start), 0):
        if known >= set(range(first, first + int(space.n))):
            return first, [table[first + i] for i in range(int(space.n))]
    raise ConfigError(f"{where}: its table P lacks a {what} of {space}")
