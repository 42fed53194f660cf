"""The tactical layer: tabular Q-learning on whatever a forager sees, one step at a time.

    Q(o, a) += step (r + discount max_b Q(o', b) - Q(o, a)),  epsilon-greedy, ties broken at random

The observation is any hashable value, so the learner serves other environments too: `Foraging-*` of the package
`lbforaging`, a PettingZoo game, a Gymnasium one with discrete observations. Constants are [inferred].
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number


class TacticalLearner:
    """One forager. ``actions``: how many it has. ``step``: learning rate in (0, 1]. ``discount`` in [0, 1).
    ``explore``: chance of a random action. ``seed``: for the random numbers that a caller doesn't supply. Observations
    that were never met have value 0. ``ConfigError`` names a bad argument."""

    def __init__(
        self, actions: int, step: float = 0.1, discount: float = 0.9, explore: float = 0.1, seed: int = 0
    ) -> None:
        self.actions = int(number("TacticalLearner", "actions", actions, 1, whole=True))
        self.step = number("TacticalLearner", "step", step, above=0, high=1)
        self.discount = number("TacticalLearner", "discount", discount, 0, below=1)
        self.explore = number("TacticalLearner", "explore", explore, 0, 1)
        self.table: dict[Hashable, Floats] = {}
        self._rng = np.random.default_rng(int(number("TacticalLearner", "seed", seed, 0, whole=True)))

    def values(self, observation: Hashable) -> Floats:
        """Q(o, .) [actions]; zeros for one that was never met. ``ConfigError`` if it can't be a dictionary's key."""
        try:
            row = self.table.get(observation)
        except TypeError:
            raise ConfigError(
                f"TacticalLearner: observation of type {type(observation).__name__} can't be looked up; give a number "
                "or a tuple, such as tuple(observation.tolist())"
            ) from None
        return np.zeros(self.actions) if row is None else row

    def greedy(self, observation: Hashable, u: float | None = None) -> int:
        """The action of the largest Q at ``observation``; ``u`` in [0, 1) picks among equals (None: the learner's own
        random number)."""
        q = self.values(observation)
        best = np.flatnonzero(q == q.max())
        return int(best[int((self._rng.random() if u is None else u) * len(best))])

    def act(self, observation: Hashable, uniforms: tuple[float, float] | None = None) -> int:
        """Epsilon-greedy. ``uniforms`` in [0, 1): the first decides whether to explore, the second picks the action or
        breaks the tie; drawn if None."""
        whether, which = uniforms or (self._rng.random(), self._rng.random())
        return int(which * self.actions) if whether < self.explore else self.greedy(observation, which)

    def learn(
        self, observation: Hashable, action: int, reward: float, following: Hashable, ended: bool = False
    ) -> float:
        """One update; ``ended``: nothing follows (a terminal state, not a cut-off). Returns the temporal difference.
        ``ConfigError``: an action out of range, a reward that isn't finite."""
        number("TacticalLearner.learn", "action", action, 0, self.actions - 1, whole=True)
        number("TacticalLearner.learn", "reward", reward)
        ahead = 0.0 if ended else self.discount * float(self.values(following).max())
        row = self.table.setdefault(observation, self.values(observation))
        error = reward + ahead - float(row[action])
        row[action] += self.step * error
        return error
