"""Independent-resource Markov congestion games: each player picks a resource; each resource has its own state, which
moves with its own load."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.markov import MarkovGame
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number, probabilities

MAX_JOINT = 2_000_000
"""Largest [S, J, S] table that is built; more players: ``stretto.games.potential.many``."""


@dataclass(frozen=True)
class PotentialGame:
    """A Markov ``game`` (joint actions with player 0 slowest) and its stage ``potential`` [S, J]: when one player
    changes its action at a state, its cost changes as the potential does."""

    game: MarkovGame
    potential: Floats


@dataclass(frozen=True)
class Congestion(PotentialGame):
    """Joint states have resource 0 slowest. ``resource_costs`` [E, Z, N+1] and ``resource_moves`` [E, Z, N+1, Z]: cost
    and law of resource e in state z under load n (the cost at load 0 is paid by nobody)."""

    resource_costs: Floats
    resource_moves: Floats


def congestion_game(
    costs: ArrayLike, transitions: ArrayLike, gamma: float, start: ArrayLike | None = None
) -> Congestion:
    """The congestion game of ``costs`` [E, Z, N+1] and ``transitions`` [E, Z, N+1, Z] (see ``Congestion``). ``start``
    [Z^E]: law of the first joint state, uniform if None. Stage potential (Rosenthal): F(z, a) = sum_e sum_{k=1}^{n_e}
    c_e(z_e, k). ``ConfigError`` for wrong shapes, rows that don't sum to one, or a table that would be too large."""
    where = "congestion_game"
    c = array(where, "costs", costs, (None, None, None))
    resources, levels, players = c.shape[0], c.shape[1], c.shape[2] - 1
    p = probabilities(where, "transitions", transitions, (None, None, None, None))
    if p.shape != (resources, levels, players + 1, levels):
        raise ConfigError(
            f"{where}: transitions has shape {p.shape}; with costs {c.shape} it needs "
            f"{(resources, levels, players + 1, levels)}"
        )
    if players < 1:
        raise ConfigError(f"{where}: costs has no load above 0 on its last axis; give loads 0 .. N for N >= 1 players")
    states, joint = levels**resources, resources**players
    if states * joint * states > MAX_JOINT:
        raise ConfigError(f"{where}: {states} states and {joint} joint actions are too many for a table; fewer players")
    z, a = digits(states, (levels,) * resources), digits(joint, (resources,) * players)
    loads = np.stack([(a == e).sum(1) for e in range(resources)], axis=1)  # [J, E]
    law = np.ones((states, joint, 1))
    potential = np.zeros((states, joint))
    for e in range(resources):
        along = p[e][z[:, e]][:, loads[:, e]]  # [S, J, Z]
        law = (law[..., :, None] * along[..., None, :]).reshape(states, joint, -1)
        potential += np.cumsum(np.concatenate([np.zeros((levels, 1)), c[e, :, 1:]], axis=1), axis=1)[z[:, e]][
            :, loads[:, e]
        ]
    paid = np.stack([[c[a[:, i], z[s][a[:, i]], loads[np.arange(joint), a[:, i]]] for s in range(states)]
                     for i in range(players)])  # fmt: skip
    first = np.full(states, 1 / states) if start is None else array(where, "start", start, (states,))
    game = MarkovGame(law, paid, gamma, (resources,) * players, first)
    return Congestion(game, potential, c, p)


def digits(count: int, bases: tuple[int, ...]) -> Ints:
    """The numbers 0 .. count-1 in mixed ``bases``, slowest first: [count, len(bases)]."""
    if math.prod(bases) != count:
        raise ConfigError(f"digits: bases {bases} enumerate {math.prod(bases)} numbers, not {count}")
    return np.stack(np.unravel_index(np.arange(count), bases), axis=1)


def imcg(
    kappa: float, players: int = 3, seed: int = 0, gamma: float = 0.8, start: ArrayLike | None = None
) -> Congestion:
    """Two resources of two states. Cost base + slope n, divided by its largest; law (1 - kappa n/N) K0 + kappa (n/N)
    K1: ``kappa`` in [0, 1] is the sensitivity of the transitions to the load. Constants [inferred]: base and slope
    uniform on [.5, 1.5], K0 and K1 with Dirichlet(1) rows, drawn from ``default_rng(seed)``."""
    number("imcg", "kappa", kappa, 0.0, 1.0)
    number("imcg", "players", players, 1, whole=True)
    rng = np.random.default_rng(seed)
    base, slope = rng.uniform(0.5, 1.5, (2, 2)), rng.uniform(0.5, 1.5, (2, 2))
    k0, k1 = rng.dirichlet(np.ones(2), size=(2, 2)), rng.dirichlet(np.ones(2), size=(2, 2))
    load = np.arange(players + 1)
    costs = base[..., None] + slope[..., None] * load
    share = (kappa * load / players)[:, None]
    transitions = (1 - share) * k0[:, :, None, :] + share * k1[:, :, None, :]
    return congestion_game(costs / costs.max(), transitions, gamma, start)
