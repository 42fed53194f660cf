"""How far a Markov game is from a potential game: alpha bounds |change of V_i - change of Phi| over one player's
deviations, where Phi is the discounted sum of a stage potential F.

The costs split as c_i = F + d_i. With the others fixed, the deviation is the spread (largest minus least over the
player's own policies) of the discounted sum of d_i. Source: "High-Probability Nash Regret for Decentralized Learning in
Markov alpha-Potential Games"; the routes to alpha below are consequences of the definition.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.markov import MarkovGame, Policies, values
from stretto.games.potential.batch import best_values, own_apart
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number

_CHUNK = 4096


def total_potential(game: MarkovGame, potential: ArrayLike, policies: Policies) -> Floats:
    """Phi [S]: expected discounted sum of the stage potential [S, J] from each state."""
    stage = array("total_potential", "potential", potential, (game.states, game.transitions.shape[1]))
    return values(MarkovGame(game.transitions, np.stack([stage] * game.players), game.gamma, game.actions), policies)[0]


def residuals(game: MarkovGame, potential: ArrayLike) -> Floats:
    """d [N, S, J] = costs minus the stage potential: what a player's cost has beside it."""
    return game.costs - array("residuals", "potential", potential, (game.states, game.transitions.shape[1]))


def transition_sensitivity(game: MarkovGame) -> float:
    """kTV: the largest total-variation change of the next state's law when one player changes its action."""
    largest = 0.0
    for i in range(game.players):
        transitions = own_apart(game, i, game.transitions)  # [S, A, O, S]
        for a in range(transitions.shape[1]):
            largest = max(largest, float(np.abs(transitions - transitions[:, a : a + 1]).sum(-1).max()) / 2)
    return largest


def alpha_bound(game: MarkovGame, potential: ArrayLike) -> float:
    """gamma kTV span(d) / (1 - gamma)^2, an upper bound on alpha for an exact stage potential. ``ConfigError`` if some
    d_i depends on player i's own action: then ``potential`` isn't one."""
    d = residuals(game, potential)
    for i in range(game.players):
        own = own_apart(game, i, d[i])
        if np.abs(own - own[:, :1]).max() > 1e-9 * max(1.0, float(np.abs(d).max())):
            raise ConfigError(
                f"alpha_bound: potential isn't a stage potential: cost {i} minus it depends on player {i}'s own action"
            )
    span = float((d.max((1, 2)) - d.min((1, 2))).max())
    return game.gamma * transition_sensitivity(game) * span / (1 - game.gamma) ** 2


def alpha_enumerated(game: MarkovGame, potential: ArrayLike, limit: int = 300_000) -> float:
    """The largest deviation over deterministic opponents, players and states (over the player's own policies it is
    exact): a lower bound on alpha that needs no sampling. ``ConfigError`` if a player faces more than ``limit``
    deterministic opponents: enumerate a smaller game, or report ``alpha_bound`` and ``alpha_sampled``."""
    d = residuals(game, potential)
    largest = 0.0
    for i in range(game.players):
        transitions, own = own_apart(game, i, game.transitions), own_apart(game, i, d[i])
        others = own.shape[2]
        if others**game.states > number("alpha_enumerated", "limit", limit, 1):
            raise ConfigError(
                f"alpha_enumerated: player {i} faces {others}^{game.states} deterministic opponents, more than limit = "
                f"{limit}; use alpha_bound and alpha_sampled"
            )
        for choice in _chunks(others, game.states):
            rows = np.arange(game.states)
            faced, reward = transitions[rows, :, choice], own[rows, :, choice]  # [B, S, A, S], [B, S, A]
            spread = best_values(faced, reward, game.gamma) + best_values(faced, -reward, game.gamma)
            largest = max(largest, float(spread.max()))
    return largest


def alpha_sampled(
    game: MarkovGame, potential: ArrayLike, draws: int = 500, concentration: float = 1.0, seed: int = 0
) -> float:
    """The largest |change of V_i - change of Phi| over ``draws`` random unilateral deviations (policies' rows from
    Dirichlet(``concentration``)): only a lower bound, and it depends on how policies are drawn."""
    number("alpha_sampled", "draws", draws, 1, whole=True)
    number("alpha_sampled", "concentration", concentration, above=0)
    rng = np.random.default_rng(seed)
    apart = MarkovGame(game.transitions, residuals(game, potential), game.gamma, game.actions, game.start)
    largest = 0.0
    for k in range(draws):
        i = k % game.players
        policies = [rng.dirichlet(np.full(a, concentration), size=game.states) for a in game.actions]
        before = values(apart, policies)[i]
        policies[i] = rng.dirichlet(np.full(game.actions[i], concentration), size=game.states)
        largest = max(largest, float(np.abs(values(apart, policies)[i] - before).max()))
    return largest


def _chunks(others: int, states: int) -> Iterator[Ints]:
    """All maps from states to the others' joint actions, [B, S] at a time."""
    for first in range(0, others**states, _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, others**states))
        yield np.stack(np.unravel_index(numbers, (others,) * states), axis=1)
