"""Q-learning step by step from any Gymnasium environment with discrete spaces, with plain or robust means."""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import discount, number
from stretto.tabular.gym_spaces import DiscreteEnv
from stretto.tabular.q.kernel import improve
from stretto.tabular.q.learning import Rule


class OnlineQ:
    """Learns ``q`` [S,A] of ``env`` at discount ``gamma`` from what it is shown. ``rule``: as of ``q_learning``; all
    but ``vanilla`` freeze Q for ``batch`` steps. ``share``: the corrupted share that is expected, which sets the trim
    unless the rule does. ``explore``: chance of a uniform action in ``act`` (1: always), else a greedy one.
    ``ConfigError`` unless both spaces are Discrete."""

    def __init__(
        self,
        env: DiscreteEnv,
        gamma: float,
        rule: Rule,
        *,
        share: float = 0.0,
        batch: int = 8000,
        explore: float = 1.0,
        seed: int = 0,
    ) -> None:
        where = type(self).__name__
        states, actions = (_discrete(where, env, name) for name in ("observation_space", "action_space"))
        if not isinstance(rule, Rule):
            raise ConfigError(f"{where}: rule must be a Rule; got {rule!r}")
        self.rule, self.gamma = rule, discount(where, gamma)
        self.explore = number(where, "explore", explore, 0, 1)
        self._first = (int(states.start), int(actions.start))
        self.q = np.zeros((int(states.n), int(actions.n)))
        self._trims = rule.trims(number(where, "share", share, 0, below=0.5), *self.q.shape)
        self._targets = np.empty(int(number(where, "batch", batch, 1, whole=True)))
        self._pairs = np.empty(len(self._targets), np.int64)
        self._filled, self._values = 0, np.zeros(len(self.q))
        self._random = np.random.default_rng(int(number(where, "seed", seed, 0, whole=True)))

    def act(self, observation: int) -> int:
        """An action for ``observation``: uniform with chance ``explore``, else the best by ``q``."""
        s = self._state(observation)
        if self._random.random() < self.explore:
            return self._first[1] + int(self._random.integers(self.q.shape[1]))
        return self._first[1] + int(self.q[s].argmax())

    def observe(self, observation: int, action: int, reward: float, following: int, terminated: bool) -> None:
        """Take in one step. After a terminal one nothing follows. ``ConfigError`` for a reward that isn't finite or a
        state or action that doesn't exist."""
        s, a, after = self._state(observation), _whole(action, self._first[1]), self._state(following)
        if not 0 <= a < self.q.shape[1]:
            raise ConfigError(f"{type(self).__name__}.observe: action = {action} is not in the action space")
        reward = number(f"{type(self).__name__}.observe", "reward", reward)
        if self.rule.method == "vanilla":
            target = reward + self.gamma * (0.0 if terminated else float(self.q[after].max()))
            self.q[s, a] += self.rule.size * (target - self.q[s, a])
            return
        self._pairs[self._filled] = s * self.q.shape[1] + a
        self._targets[self._filled] = reward + self.gamma * (0.0 if terminated else self._values[after])
        self._filled += 1
        if self._filled == len(self._targets):
            improve(self.q, self._pairs, self._targets, self.rule.size, self.rule.kind, self._trims, self.rule.block,
                    self.rule.fewest)  # fmt: skip
            self._filled, self._values = 0, self.q.max(1)

    def learn(self, env: DiscreteEnv, steps: int, seed: int | None = None) -> Floats:
        """Act and take in ``steps`` steps of ``env``, reset with ``seed`` and whenever an episode ends; gives ``q``."""
        steps = int(number(f"{type(self).__name__}.learn", "steps", steps, 1, whole=True))
        observation, _ = env.reset(seed=seed)
        for _ in range(steps):
            action = self.act(observation)
            following, reward, terminated, truncated, _ = env.step(action)
            self.observe(observation, action, float(reward), following, terminated)
            observation = env.reset()[0] if terminated or truncated else following
        return self.q

    def _state(self, observation: int) -> int:
        s = _whole(observation, self._first[0])
        if not 0 <= s < len(self.q):
            raise ConfigError(f"{type(self).__name__}: observation = {observation} is not in the observation space")
        return s


def _discrete(where: str, env: DiscreteEnv, name: str) -> Discrete:
    space = getattr(env, name, None)
    if not isinstance(space, Discrete):
        raise ConfigError(f"{where}: env.{name} is {space}; it must be Discrete")
    return space


def _whole(value: int, first: int) -> int:
    """``value`` counted from ``first``; -1 if it isn't a whole number."""
    try:
        found = int(value)
        return found - first if found == value else -1
    except (TypeError, ValueError, OverflowError):
        return -1


class TrimmedQ(OnlineQ):
    """``OnlineQ`` by trimmed means: each epoch of ``batch`` steps drops, of the targets at each (s, a), the ``trim``
    largest and smallest share (None: ``trim_for(share)``) before it takes their mean (BR-Async-Q)."""

    def __init__(
        self, env: DiscreteEnv, gamma: float, *, share: float, trim: ArrayLike | None = None, step: float = 0.5,
        batch: int = 8000, explore: float = 1.0, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(env, gamma, Rule("trimmed", step, trim), share=share, batch=batch, explore=explore, seed=seed)
