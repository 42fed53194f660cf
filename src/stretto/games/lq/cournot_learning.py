"""Iterated least squares of firms in the Cournot market, compiled: seeds side by side, bit for bit the plain reference.

A step: quantities from the price, the next price, nine sums a firm; at a firm's own times least squares, its model
kept within bb in [-5, -.001], a1 in [-.95, .999], and the Riccati equation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike

from stretto.data.arrays import Bools, Floats, Ints
from stretto.games.lq.cournot import Cournot
from stretto.games.lq.market import ACTION, EXPLORE, NOISE, RING, Learned, Learners, checkpoints_of, frozen_of
from stretto.games.lq.scalar import firm_gain, solve2, solve3
from stretto.tabular.arguments import array, distinct_seeds
from stretto.tabular.counter import key, normal, uniform
from stretto.tabular.threads import start_threads

_MEMORY = {"all": 0, "forget": 1, "doubling": 2}
# the sums that a firm keeps: 1, p, p^2, v, p v, v^2, p', p p', v p', q, p q with v = q, or the total output if known
SUMS = 11
BB = (-5.0, -0.001)
A1 = (-0.95, 0.999)
_Market = tuple[float, float, float, float, float, float, int]
_Options = tuple[bool, float, bool, int, float, float, int]


def cournot_least_squares(
    model: Cournot,
    learners: Learners,
    steps: int,
    seeds: Sequence[int],
    checkpoints: Sequence[int] | None = None,
    gains: ArrayLike | None = None,
    frozen: Sequence[int] = (),
) -> Learned:
    """Let the firms of ``model`` learn for ``steps`` steps, once a seed. ``checkpoints``: when to record their gains.
    ``gains`` [firms, 2]: where they start (None: ``learners.start``). ``frozen``: firms that neither explore nor
    update. Results don't depend on the number of threads. Cost: about 50 ns a step and firm."""
    inputs = prepare("cournot_least_squares", model, learners, steps, checkpoints, gains, frozen)
    runs, marks = distinct_seeds("cournot_least_squares", seeds), inputs[-2]
    out = np.empty((len(runs), len(marks), model.firms, 2))
    flows = np.zeros((len(runs), model.firms + 4))
    start_threads()
    _learn_all(runs, *inputs, out, flows)
    return learned(model, marks, out, flows)


def prepare(
    where: str, model: Cournot, learners: Learners, steps: int, checkpoints: Sequence[int] | None,
    gains: ArrayLike | None, frozen: Sequence[int],
) -> tuple[_Market, _Options, Floats, Ints, Floats, Bools, Floats, Floats, Ints, Floats]:  # fmt: skip
    """What the kernel and the reference take, checked: market constants, options, exploration [steps], periods,
    chances to ring, who learns, c, k, checkpoints, first gains."""
    count, marks = checkpoints_of(where, steps, checkpoints)
    first = np.tile(array(where, "start", learners.start), (model.firms, 1)) if gains is None else gains
    K = array(where, "gains", first, (model.firms, 2))
    learns = np.ones(model.firms, np.bool_)
    learns[frozen_of(where, frozen, model.firms)] = False
    market = (model.a, model.b, model.s, model.beta, model.sigma, model.q_max, model.timing)
    options = (learners.centred, learners.width, learners.published, _MEMORY[learners.memory], learners.forget,
               learners.ridge, learners.warmup)  # fmt: skip
    return market, options, learners.exploration(count), *learners.gaps(model.firms), learns, *model.costs, marks, K


def learned(model: Cournot, marks: Ints, gains: Floats, flows: Floats) -> Learned:
    """The result of recorded gains and of flows [seeds, firms + 4]: profits, consumer surplus, hhi, last price,
    updates without a solution."""
    n = model.firms
    return Learned(model, marks, gains, flows[:, :n], flows[:, n], flows[:, n + 1], flows[:, n + 2],
                   flows[:, n + 3].astype(np.int64))  # fmt: skip


@njit(cache=True)
def believed(now: Floats, old: Floats, ridge: float, published: bool) -> tuple[float, float, float]:
    """(a0, a1, bb) of p' = a0 + a1 p + bb q, within bounds, from a firm's sums [SUMS] and those of the window before.
    With the total output known: p' on (1, p, Q) and the others' output on (1, p), put together."""
    m = np.empty(SUMS)
    for j in range(SUMS):
        m[j] = now[j] + old[j]
    a0, a1, bb = solve3(m[0] + ridge, m[1], m[3], m[2] + ridge, m[4], m[5] + ridge, m[6], m[7], m[8])
    bb = min(max(bb, BB[0]), BB[1])
    if published:
        f0, f1 = solve2(m[0] + ridge, m[1], m[2] + ridge, m[3] - m[9], m[4] - m[10])
        a0, a1 = a0 + bb * f0, a1 + bb * f1
    return a0, min(max(a1, A1[0]), A1[1]), bb


@njit(cache=True)
def _learn(
    seed: int, market: _Market, options: _Options, rates: Floats, periods: Ints, chances: Floats, learns: Bools,
    c: Floats, k: Floats, marks: Ints, first: Floats, out: Floats, flows: Floats,
) -> None:  # fmt: skip
    a, b, s, beta, sigma, q_max, timing = market
    centred, width, published, memory, forget, ridge, warmup = options
    steps, n = len(rates), len(c)
    explore, action, ring, noise = key(seed, EXPLORE), key(seed, ACTION), key(seed, RING), key(seed, NOISE)
    K, q = first.copy(), np.zeros(n)
    now, old = np.zeros((n, SUMS)), np.zeros((n, SUMS))
    p, mark, window, selling = a / 2, 0, 2, 0
    for t in range(steps):
        total = 0.0
        for i in range(n):
            x = min(max(-(K[i, 0] + K[i, 1] * p), 0.0), q_max)
            if learns[i] and uniform(explore, t * n + i) < rates[t]:
                u = uniform(action, t * n + i)
                x = min(max(x + width * (2.0 * u - 1.0), 0.0), q_max) if centred else q_max * u
            q[i] = x
            total += x
        after = (1 - s) * p + s * (a - b * total) + sigma * normal(noise, t)
        paid = after if timing == 2 else p
        squares = 0.0
        for i in range(n):
            flows[i] += (paid - c[i] - k[i] / 2 * q[i]) * q[i]
            squares += q[i] * q[i]
        flows[n] += (a - b / 2 * total - paid) * total
        if total > 0:
            flows[n + 1] += squares / (total * total)
            selling += 1
        for i in range(n):
            if not learns[i]:
                continue
            if memory == 1:
                for j in range(SUMS):
                    now[i, j] *= forget
            v = total if published else q[i]
            now[i, 0] += 1.0
            now[i, 1] += p
            now[i, 2] += p * p
            now[i, 3] += v
            now[i, 4] += p * v
            now[i, 5] += v * v
            now[i, 6] += after
            now[i, 7] += p * after
            now[i, 8] += v * after
            now[i, 9] += q[i]
            now[i, 10] += p * q[i]
            due = (t + 1) % periods[i] == 0 if periods[i] > 0 else uniform(ring, t * n + i) < chances[i]
            if due and t + 1 >= warmup:
                a0, a1, bb = believed(now[i], old[i], ridge, published)
                K0, K1, found = firm_gain(a0, a1, bb, c[i], k[i], beta, timing)
                if found:
                    K[i, 0], K[i, 1] = K0, K1
                else:
                    flows[n + 3] += 1.0
        if memory == 2 and t + 1 == window:
            for i in range(n):
                for j in range(SUMS):
                    old[i, j], now[i, j] = now[i, j], 0.0
            window *= 2
        p = after
        if mark < len(marks) and t + 1 == marks[mark]:
            for i in range(n):
                out[mark, i, 0], out[mark, i, 1] = K[i, 0], K[i, 1]
            mark += 1
    for j in range(n + 1):
        flows[j] /= steps
    flows[n + 1] /= max(selling, 1)
    flows[n + 2] = p


@njit(cache=True, parallel=True)
def _learn_all(
    seeds: Ints, market: _Market, options: _Options, rates: Floats, periods: Ints, chances: Floats, learns: Bools,
    c: Floats, k: Floats, marks: Ints, first: Floats, out: Floats, flows: Floats,
) -> None:  # fmt: skip
    for run in prange(len(seeds)):
        _learn(seeds[run], market, options, rates, periods, chances, learns, c, k, marks, first, out[run], flows[run])
