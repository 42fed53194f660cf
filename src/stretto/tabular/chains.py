"""Markov chains exactly: stationary law, mixing and hitting times, time reversal."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number, probabilities

_LONGEST = 62


def stationary(transitions: ArrayLike) -> Floats:
    """mu [S] with mu P = mu of ``transitions`` P [S,S]. ``ConfigError`` where it isn't unique or leaves a state out (a
    reducible chain)."""
    return _stationary(*_irreducible("stationary", transitions))


def mixing_time(transitions: ArrayLike, level: float = 0.25) -> int:
    """Least t with max_s TV(P^t(s, .), mu) <= ``level``: matrix powers doubled until it holds, then bisection.
    ``ConfigError`` for a reducible or periodic chain."""
    p, where = _irreducible("mixing_time", transitions)
    level = number("mixing_time", "level", level, above=0, below=1)
    mu = _stationary(p, where)

    def far(power: Floats) -> bool:
        return bool(0.5 * np.abs(power - mu).sum(1).max() > level)

    if not far(np.eye(len(p))):
        return 0
    powers = [p]
    while far(powers[-1]):
        if len(powers) > _LONGEST:
            raise ConfigError("mixing_time: transitions never come near their stationary law; is the chain periodic?")
        powers.append(powers[-1] @ powers[-1])
    reached, t = np.eye(len(p)), 0
    for k in range(len(powers) - 2, -1, -1):  # the distance never grows with t
        longer = reached @ powers[k]
        if far(longer):
            reached, t = longer, t + (1 << k)
    return t + 1


def hitting_times(transitions: ArrayLike) -> Floats:
    """Expected steps [S,S] from the row's state until the column's (0 on the diagonal), by a linear solve a column.
    ``ConfigError`` for a reducible chain."""
    p, _ = _irreducible("hitting_times", transitions)
    out = np.zeros_like(p)
    for target in range(len(p)):
        others = np.arange(len(p)) != target
        system = np.eye(len(p) - 1) - p[np.ix_(others, others)]
        out[others, target] = np.linalg.solve(system, np.ones(len(p) - 1))
    return out


def time_reversal(transitions: ArrayLike) -> Floats:
    """Transition probabilities [S,S] of the chain run backwards, mu_y P[y,x] / mu_x. ``ConfigError`` for a reducible
    chain."""
    p, where = _irreducible("time_reversal", transitions)
    mu = _stationary(p, where)
    return np.asarray(mu * p.T / mu[:, None])


def _stationary(p: Floats, where: str) -> Floats:
    states = len(p)
    system = np.vstack([p.T - np.eye(states), np.ones(states)])
    mu = np.linalg.lstsq(system, np.append(np.zeros(states), 1.0), rcond=None)[0]
    if not (mu > 0).all():
        raise ConfigError(f"{where}: transitions have a stationary law with {mu.min():g} in it: numerically reducible")
    return np.asarray(mu)


def _irreducible(where: str, transitions: ArrayLike) -> tuple[Floats, str]:
    p = probabilities(where, "transitions", transitions, (None, None))
    if p.shape[0] != p.shape[1]:
        raise ConfigError(f"{where}: transitions must be [S,S]; got {list(p.shape)}")
    parts, label = connected_components(csr_array(p), connection="strong")
    if parts > 1:
        there = np.flatnonzero(label != label[0])[0]
        raise ConfigError(
            f"{where}: transitions are a reducible chain: states 0 and {there} can't be reached from each other; "
            "give each a way to the other, or leave one out (stretto.tabular.td.process.only_entered drops those that "
            "a reward process never enters)"
        )
    return p, where
