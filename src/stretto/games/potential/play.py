"""What the learners' compiled loops need of a Markov game, and what they give back."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.markov import MarkovGame
from stretto.kernel.errors import ConfigError
from stretto.tabular.sampling import alias_table
from stretto.tabular.slopes import log_spaced
from stretto.tabular.threads import start_threads

ACTIONS, MOVES, NOISE, STOP, START = 0, 1, 2, 3, 4
"""Streams of random draws (``stretto.tabular.counter``)."""


class Tables(NamedTuple):
    """A game for a compiled loop. ``columns``, ``bits``: alias tables of the next state, row s * J + j;
    ``start_columns``, ``start_bits``: of the first state, row 0; ``costs`` [S * J, N]; ``actions`` [N]; ``strides``
    [N]: what one step of a player's action adds to the joint action."""

    columns: Floats
    bits: int
    start_columns: Floats
    start_bits: int
    costs: Floats
    actions: Ints
    strides: Ints
    gamma: float


def tables(game: MarkovGame) -> Tables:
    """``game`` as flat arrays for compiled loops, with alias tables of the next and the first state."""
    joint = game.transitions.shape[1]
    strides = joint // np.cumprod(game.actions)
    transitions, start = alias_table(game.transitions), alias_table(game.start[None])
    costs = np.ascontiguousarray(game.costs.reshape(game.players, -1).T)
    return Tables(*transitions, *start, costs, np.array(game.actions), strides, game.gamma)


@dataclass(frozen=True)
class Run:
    """Policies at ``times`` [K] (steps or rounds done) of each seed: ``policies`` [seeds, K, N, S, A], A the largest
    number of actions (further entries are 0). ``at(seed, k)`` gives them one array [S, A_i] a player. ``critics``
    [seeds, N, S, A]: what each player believes at the end that its actions cost, of a learner that keeps that."""

    times: Ints
    policies: Floats
    actions: tuple[int, ...]
    critics: Floats | None = None

    def at(self, run: int, k: int) -> list[Floats]:
        """The policies, one [S, A_i] a player, of run number ``run`` (its place among the seeds) at ``times[k]``."""
        return [self.policies[run, k, i, :, :a] for i, a in enumerate(self.actions)]


def log_times(last: int, points: int = 41) -> Ints:
    """0, then ``points`` whole numbers spaced evenly on a logarithmic axis from 1 to ``last`` (equal ones once)."""
    return np.concatenate([[0], log_spaced(max(last, 1), points)])


def checked_times(where: str, times: ArrayLike | None, last: int) -> Ints:
    """``times`` (None: ``log_times``) as int64; ``ConfigError`` unless increasing within 0 .. ``last``."""
    out = log_times(last) if times is None else np.atleast_1d(np.asarray(times, np.int64))
    if out.ndim != 1 or len(out) == 0 or (np.diff(out) <= 0).any() or out[0] < 0 or out[-1] > last:
        raise ConfigError(f"{where}: times must be increasing whole numbers from 0 to {last}")
    return out


def padded(game: MarkovGame) -> Floats:
    """Uniform policies [N, S, A] as one array, A the largest number of actions; 0 beyond a player's own."""
    out = np.zeros((game.players, game.states, max(game.actions)))
    for i, a in enumerate(game.actions):
        out[i, :, :a] = 1 / a
    return out


def each_seed(run: Callable[..., object], seeds: Ints, *out: Floats) -> None:
    """``run(seed, *(x[k] for x in out))`` for each seed, as many at a time as Numba may use threads. ``run`` calls a
    compiled loop that releases the interpreter; seeds share nothing, so the results can't depend on the threads. (A
    prange around the loop does the same and doubles its compilation.)"""
    with ThreadPoolExecutor(start_threads()) as pool:
        list(pool.map(run, [int(seed) for seed in seeds], *out))


@njit(cache=True)
def pick(policies: Floats, i: int, s: int, count: int, u: float) -> int:
    """The action that ``u`` in [0, 1) picks from the first ``count`` probabilities of ``policies[i, s]``."""
    total = 0.0
    for a in range(count - 1):
        total += policies[i, s, a]
        if u < total:
            return a
    return count - 1


@njit(cache=True)
def keep(out: Floats, k: int, policies: Floats) -> None:
    """out[k] = policies, by hand: Numba spends five seconds on compiling that assignment."""
    for i in range(policies.shape[0]):
        for s in range(policies.shape[1]):
            for a in range(policies.shape[2]):
                out[k, i, s, a] = policies[i, s, a]
