"""TD step by step, on whatever transitions an environment hands out."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, discount, number
from stretto.tabular.td.steps import Steps


class TD:
    """Values of the policy that acts, learned online: ``update(state, reward, after, done)`` for each transition of a
    Gymnasium environment with ``states`` discrete observations. ``gamma``: one number, or one per state [S];
    ``values``: V_0, a number or [S]. ``values`` [S] and ``updates`` are what it has come to. ``ConfigError`` for
    arguments out of range."""

    def __init__(self, states: int, gamma: ArrayLike, steps: Steps, values: ArrayLike = 0.0) -> None:
        states = int(number("TD", "states", states, 1, whole=True))
        for value in np.atleast_1d(array("TD", "gamma", gamma)).flat:
            discount("TD", value)
        self._gamma = array("TD", "gamma", np.full(states, gamma) if np.ndim(gamma) == 0 else gamma, (states,))
        first = np.full(states, values) if np.ndim(values) == 0 else values
        self.values: Floats = array("TD", "values", first, (states,)).copy()
        self.updates = 0
        if not isinstance(steps, Steps):
            raise ConfigError(f"TD: steps = {steps!r} must be Steps, as constant(0.1) or decreasing(80)")
        self._steps = steps

    def update(self, state: int, reward: float, after: int, done: bool = False) -> float:
        """Learn from one transition; returns the TD error. ``done``: ``after`` ended the episode and is worth nothing
        (Gymnasium's ``terminated``; a truncated episode goes on in value, so pass False for it)."""
        last = len(self.values) - 1
        state = int(number("TD.update", "state", state, 0, last, whole=True))
        after = int(number("TD.update", "after", after, 0, last, whole=True))
        reward = number("TD.update", "reward", reward)
        self.updates += 1
        rest = 0.0 if done else self._gamma[state] * self.values[after]
        error = float(reward + rest - self.values[state])
        self.values[state] += float(self._steps.at(self.updates)) * error
        return error
