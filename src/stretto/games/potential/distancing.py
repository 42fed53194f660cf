"""The distancing game: players like crowded facilities until the crowd makes the state bad."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Ints
from stretto.games.markov import MarkovGame
from stretto.games.potential.congestion import PotentialGame, digits
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number

WEIGHTS = (1.0, 2.0, 4.0, 6.0)
MAX_JOINT = 1_000_000


def distancing(players: int = 8, weights: ArrayLike = WEIGHTS, penalty: float = 100.0, gamma: float = 0.99,
               start: ArrayLike | None = None) -> PotentialGame:  # fmt: skip
    """State 0 is good, 1 bad. A player at facility k among n earns ``weights[k]`` n, less ``penalty`` in the bad state.
    It turns bad if some load exceeds N/2 and stays bad while some load exceeds N/4 (arXiv 2310.09727, section 5, after
    Leonardos et al. 2021). Costs are minus the rewards over the largest |reward|, so that they are of order one
    [inferred]. Stage potential: minus sum_k w_k (1 + .. + n_k), the penalty once. ``ConfigError`` for bad weights or
    more joint actions than a table can hold."""
    number("distancing", "players", players, 1, whole=True)
    number("distancing", "penalty", penalty, 0)
    w = array("distancing", "weights", weights, (None,))
    if len(w) == 0 or (w <= 0).any():
        raise ConfigError(f"distancing: weights {w.tolist()} must be positive, one a facility")
    if len(w) ** players > MAX_JOINT:
        raise ConfigError(f"distancing: {len(w)}^{players} joint actions are too many for a table; fewer players")
    a = digits(len(w) ** players, (len(w),) * players)
    loads: Ints = np.stack([(a == k).sum(1) for k in range(len(w))], axis=1)  # [J, K]
    joint = np.arange(len(a))
    bad = np.stack([loads.max(1) > players / 2, loads.max(1) > players / 4])  # [S, J]
    transitions = np.stack([~bad, bad], axis=-1).astype(float)
    earned = np.stack([(w[a[:, i]] * loads[joint, a[:, i]]) for i in range(players)])  # [N, J]
    rewards = np.stack([earned, earned - penalty], axis=1)  # [N, S, J]
    shared = (w * loads * (loads + 1) / 2).sum(1)
    largest = max(float(w.max()) * players, abs(float(w.min()) - penalty))
    first = np.full(2, 0.5) if start is None else array("distancing", "start", start, (2,))
    game = MarkovGame(transitions, -rewards / largest, gamma, (len(w),) * players, first)
    potential = -np.stack([shared, shared - penalty]) / largest
    return PotentialGame(game, potential)
