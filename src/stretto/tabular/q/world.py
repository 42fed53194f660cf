"""A small random process on which corrupted Q-learning is tried."""

from __future__ import annotations

import numpy as np

from stretto.tabular.arguments import number
from stretto.tabular.mdp import MDP

NOISE = 0.5
"""Standard deviation of the reward's noise in that experiment [inferred]."""


def corrupt(seed: int = 0, states: int = 6, actions: int = 2, gamma: float = 0.8) -> MDP:
    """Every state reaches every other: P = .9 Dirichlet(.7) + .1 / S, rewards uniform on [0, 1], both from
    ``default_rng(seed)``, uniform start. All constants [inferred]."""
    seed = int(number("corrupt", "seed", seed, 0, whole=True))
    states = int(number("corrupt", "states", states, 1, whole=True))
    actions = int(number("corrupt", "actions", actions, 1, whole=True))
    g = np.random.default_rng(seed)
    transitions = 0.9 * g.dirichlet(np.full(states, 0.7), size=(states, actions)) + 0.1 / states
    return MDP(transitions, g.uniform(0, 1, (states, actions)), gamma)
