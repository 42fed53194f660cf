"""Q-learning along one long trajectory of any decision process, compiled: step by step, or in epochs with robust means.

Action and next state are one draw from a table with a row per state; an outcome is ``action << shift | next state``.
"""

from __future__ import annotations

import numpy as np
from numba import njit, prange

from stretto.data.arrays import Floats, Ints, Words
from stretto.tabular.counter import normal, uniform
from stretto.tabular.q.robust import estimate
from stretto.tabular.sampling import alias_sample

Rough = tuple[float, float, float, int]
"""Noise, share, magnitude and level of what is seen."""


@njit(cache=True, parallel=True)
def vanilla(
    out: Floats, keys: Words, starts: Ints, columns: Floats, bits: int, shift: int, rewards: Floats, gamma: float,
    rough: Rough | None, batch: int, step: float,
) -> None:  # fmt: skip
    """Fills ``out`` [seeds, epochs, S, A]: Q after each ``batch`` steps of Q += step (y - Q). ``keys`` [seeds, 4]:
    moves, noise, hits, fakes; ``starts`` [seeds]. ``rough`` = (noise, share, magnitude, level); None without noise
    and corruption: then the loop is compiled without."""
    for i in prange(len(starts)):  # the body is a function of its own: a parallel one takes longer to compile
        _vanilla(out[i], keys[i], starts[i], columns, bits, shift, rewards, gamma, rough, batch, step)


@njit(cache=True, parallel=True)
def batched(
    out: Floats, keys: Words, starts: Ints, columns: Floats, bits: int, shift: int, rewards: Floats, gamma: float,
    rough: Rough | None, batch: int, step: float, kind: int, trims: Floats, block: int, fewest: int,
) -> None:  # fmt: skip
    """Fills ``out`` [seeds, epochs, S, A]: Q after each epoch of ``batch`` steps with Q frozen, then ``improve``."""
    for i in prange(len(starts)):
        _batched(out[i], keys[i], starts[i], columns, bits, shift, rewards, gamma, rough, batch, step, kind, trims,
                 block, fewest)  # fmt: skip


@njit(cache=True)
def _vanilla(
    out: Floats, keys: Words, state: int, columns: Floats, bits: int, shift: int, rewards: Floats, gamma: float,
    rough: Rough | None, batch: int, step: float,
) -> None:  # fmt: skip
    q = np.zeros((rewards.shape[0], rewards.shape[1]))
    move, wiggle, hit, fake = keys[0], keys[1], keys[2], keys[3]
    for epoch in range(len(out)):
        for t in range(epoch * batch, (epoch + 1) * batch):
            seen, action, reward, follows, state = transition(
                move, wiggle, hit, fake, t, state, columns, bits, shift, rewards, rough
            )
            q[seen, action] += step * (reward + gamma * _best(q, follows) - q[seen, action])
        _keep(q, out, epoch)


@njit(cache=True)
def _batched(
    out: Floats, keys: Words, state: int, columns: Floats, bits: int, shift: int, rewards: Floats, gamma: float,
    rough: Rough | None, batch: int, step: float, kind: int, trims: Floats, block: int, fewest: int,
) -> None:  # fmt: skip
    q = np.zeros((rewards.shape[0], rewards.shape[1]))
    targets, pairs = np.empty(batch), np.empty(batch, np.int64)
    move, wiggle, hit, fake = keys[0], keys[1], keys[2], keys[3]
    for epoch in range(len(out)):
        values = best_values(q)
        for n in range(batch):
            seen, action, reward, follows, state = transition(
                move, wiggle, hit, fake, epoch * batch + n, state, columns, bits, shift, rewards, rough
            )
            pairs[n] = seen * q.shape[1] + action
            targets[n] = reward + gamma * values[follows]
        improve(q, pairs, targets, step, kind, trims, block, fewest)
        _keep(q, out, epoch)


@njit(cache=True)
def transition(
    move: np.uint64, wiggle: np.uint64, hit: np.uint64, fake: np.uint64, t: int, state: int, columns: Floats, bits: int,
    shift: int, rewards: Floats, rough: Rough | None,
) -> tuple[int, int, float, int, int]:  # fmt: skip
    """Step ``t`` from ``state``: the state that is seen, the action, the reward and next state that are seen, and the
    true next state."""
    outcome = alias_sample(columns, bits, state, uniform(move, t))
    action, after = outcome >> shift, outcome & ((1 << shift) - 1)
    reward = rewards[state, action]
    seen, follows = state, after
    if rough is not None:
        noise, share, magnitude, level = rough
        if noise > 0:
            reward += noise * normal(wiggle, t)
        if share > 0 and uniform(hit, t) < share:
            reward = -magnitude
            if level >= 1:
                follows = 0
            if level == 2:
                seen = int(uniform(fake, t) * rewards.shape[0])
    return seen, action, reward, follows, after


@njit(cache=True)
def _best(q: Floats, s: int) -> float:
    best = q[s, 0]
    for a in range(1, q.shape[1]):
        best = max(best, q[s, a])
    return best


@njit(cache=True)
def _keep(q: Floats, out: Floats, epoch: int) -> None:
    for s in range(q.shape[0]):  # by element: assigning an array to a slice takes seconds to compile
        for a in range(q.shape[1]):
            out[epoch, s, a] = q[s, a]


@njit(cache=True)
def best_values(q: Floats) -> Floats:
    """Value [S] of the best action in each state, max_a Q, for ``q`` [S,A]."""
    values = np.empty(len(q))
    for s in range(len(q)):
        values[s] = _best(q, s)
    return values


@njit(cache=True)
def improve(
    q: Floats, pairs: Ints, targets: Floats, step: float, kind: int, trims: Floats, block: int, fewest: int
) -> None:
    """Move ``q`` [S,A], in place, a ``step`` towards the estimate of each pair's ``targets`` [n]; ``pairs`` [n] = s A +
    a. A pair with less than ``fewest`` targets stays. ``trims`` [S A]."""
    cells, actions = q.size, q.shape[1]
    upto = np.zeros(cells + 1, np.int64)
    for pair in pairs:
        upto[pair + 1] += 1
    for c in range(cells):
        upto[c + 1] += upto[c]
    place, bucket = upto[:-1].copy(), np.empty(targets.size)
    for n in range(targets.size):  # in the order of time: blocks are consecutive
        bucket[place[pairs[n]]] = targets[n]
        place[pairs[n]] += 1
    for c in range(cells):
        low, high = upto[c], upto[c + 1]
        if high - low >= fewest:
            s, a = c // actions, c % actions
            q[s, a] = (1 - step) * q[s, a] + step * estimate(bucket[low:high], kind, trims[c], block)
