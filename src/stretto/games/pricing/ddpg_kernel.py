"""The DDPG loop, compiled: one pair of sellers. ``ddpg.train`` runs one a seed."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stretto.data.arrays import Floats, Ints, Singles
from stretto.games.pricing.clockwork import accrue, gap_of, latest, push, start
from stretto.games.pricing.engine import GAPS, MOVERS
from stretto.games.pricing.logit import profit_flows
from stretto.games.pricing.networks import adam, back_hidden, back_weights, forward
from stretto.tabular.counter import key, normal, uniform

WARM, NOISE, BATCH, INIT = 84, 85, 86, 87  # streams of the counter
RUNAWAY = 1e6
Sellers = tuple[Floats, Floats, float, float, float, float]
"""Qualities, costs, outside good, mu; the lowest profit and its range."""
Timing = tuple[float, float, float, bool, int]
"""Rate, latency, rho, whether all move at once, entries of a ring."""
Rates = tuple[float, ...]
"""The price box, the actor's and the critic's rate, softness of the targets, first and last noise."""


@njit(cache=True, error_model="numpy")
def learn_once(
    batch: Singles, actor: Singles, actor_t: Singles, actor_m: Singles, actor_v: Singles, critics: Singles,
    critics_t: Singles, critics_m: Singles, critics_v: Singles, step: int, actor_lr: float, critic_lr: float,
    soft: float, space: tuple[Singles, ...], said: Singles,
) -> None:  # fmt: skip
    """One update of one firm from ``batch`` [B, 7] (own, rival, action, reward, factor, next own, next rival).
    ``critics`` [C, size]; with two the target is the smaller one's (TD3). ``said``: largest |Q|, largest |target|,
    critic loss."""
    x, x3, h1, h2, g1, g2, d1, d2, flip, out, q, slope, grad_a, grad_c = space
    rows = x.shape[0]
    for b in range(rows):
        x[b, 0], x[b, 1] = batch[b, 5], batch[b, 6]
        x3[b, 0], x3[b, 1] = batch[b, 5], batch[b, 6]
    forward(actor_t, x, h1, h2, out)
    for b in range(rows):
        x3[b, 2] = math.tanh(out[b])
    for c in range(critics.shape[0]):
        forward(critics_t[c], x3, h1, h2, q if c == 0 else out)
        if c > 0:
            for b in range(rows):
                q[b] = min(q[b], out[b])
    high, loss, top = np.float32(0), np.float32(0), np.float32(0)
    for b in range(rows):
        q[b] = batch[b, 3] + batch[b, 4] * q[b]  # the target
        top = max(top, abs(q[b]))
        x3[b, 0], x3[b, 1], x3[b, 2] = batch[b, 0], batch[b, 1], batch[b, 2]
        x[b, 0], x[b, 1] = batch[b, 0], batch[b, 1]
    for c in range(critics.shape[0]):
        forward(critics[c], x3, h1, h2, out)
        for b in range(rows):
            miss = out[b] - q[b]
            high = max(high, abs(out[b]))
            loss += miss * miss
            slope[b] = np.float32(2) * miss / np.float32(rows)
        back_hidden(critics[c], 3, slope, h1, h2, d1, d2, flip)
        back_weights(grad_c, x3, slope, h1, h2, d1, d2)
        adam(critics[c], grad_c, critics_m[c], critics_v[c], step, critic_lr, critics_t[c], soft)
    forward(actor, x, g1, g2, out)
    for b in range(rows):
        x3[b, 2] = math.tanh(out[b])
    forward(critics[0], x3, h1, h2, q)
    for b in range(rows):
        slope[b] = np.float32(-1) / np.float32(rows)
    back_hidden(critics[0], 3, slope, h1, h2, d1, d2, flip)
    hidden = h1.shape[1]
    np.dot(d1, critics[0, 2 * hidden : 3 * hidden], slope)
    for b in range(rows):
        slope[b] *= np.float32(1) - x3[b, 2] * x3[b, 2]
    back_hidden(actor, 2, slope, g1, g2, d1, d2, flip)
    back_weights(grad_a, x, slope, g1, g2, d1, d2)
    adam(actor, grad_a, actor_m, actor_v, step, actor_lr, actor_t, soft)
    said[0], said[1], said[2] = high, top, loss / np.float32(rows * critics.shape[0])


@njit(cache=True, error_model="numpy")
def workspace(rows: int, hidden: int, size_a: int, size_c: int) -> tuple[Singles, ...]:
    """Scratch arrays of ``learn_once``, allocated once for batches of ``rows`` and networks of ``hidden`` units."""
    f, deep = np.float32, (rows, hidden)
    return (
        np.empty((rows, 2), f), np.empty((rows, 3), f), np.empty(deep, f), np.empty(deep, f), np.empty(deep, f),
        np.empty(deep, f), np.empty(deep, f), np.empty(deep, f), np.empty((hidden, hidden), f), np.empty(rows, f),
        np.empty(rows, f), np.empty(rows, f), np.empty(size_a, f), np.empty(size_c, f),
    )  # fmt: skip


@njit(cache=True, error_model="numpy", nogil=True)
def train_pair(
    seed: int, actors: Singles, critics: Singles, middle: Singles, trace: Floats, movers: NDArray[np.int8],
    said: Singles, averages: Floats, ended: Ints, order: Ints, market: Sellers, clocks: Timing, learner: Rates,
    counts: tuple[int, int, int, int, int, int, int],
) -> None:  # fmt: skip
    """One pair of sellers. ``actors``, ``critics``: parameters, targets, Adam's two moments, [4, 2, ..]; the other
    arrays as in ``ddpg.Trained``. Holds no lock of Python's, so that pairs run side by side in threads."""
    quality, cost, outside, mu, profit_low, profit_span = market
    rate, delay, rho, synchronous, cap = clocks
    low, high, actor_lr, critic_lr, soft, noise_first, noise_last = learner
    moves, rows, warm, memory, quiet, late, hidden = counts
    half, middle_price = (high - low) / 2, (high + low) / 2
    gaps, who, warmth = key(seed, GAPS), key(seed, MOVERS), key(seed, WARM)
    noises, picks = key(seed, NOISE), key(seed, BATCH)
    ring_t, ring_x = np.empty((2, cap)), np.empty((2, cap))
    head, read = np.zeros(2, np.int64), np.zeros(2, np.int64)
    prices, profit, flow, kept = np.full(2, middle_price), np.zeros(2), np.zeros(2), np.ones(2)
    replay, filled = np.empty((2, memory, 7), np.float32), np.zeros(2, np.int64)
    before, seen, steps = np.empty((2, 3), np.float32), np.zeros(2), np.zeros(2, np.int64)
    first_move = np.ones(2, np.bool_)
    batch = np.empty((rows, 7), np.float32)
    space = workspace(rows, hidden, actors.shape[-1], critics.shape[-1])
    one, one_out = np.empty((1, 2), np.float32), np.empty(1, np.float32)
    one_1, one_2 = np.empty((1, hidden), np.float32), np.empty((1, hidden), np.float32)
    for i in range(2):
        start(ring_t, ring_x, head, read, i, prices[i])
    profit_flows(prices, quality, cost, outside, mu, profit)
    for i in range(2):
        profit[i] = (profit[i] - profit_low) / profit_span
    t, since, moved, event = 0.0, 0.0, 0, 0
    while moved < moves:
        gap = 1 / rate if synchronous else gap_of(uniform(gaps, event), rate)
        accrue(flow, kept, profit, gap, rho)
        for i in range(2):
            averages[0, i] += gap * profit[i]
            averages[1, i] += gap * prices[i]
        t += gap
        begin = 0 if synchronous else int(uniform(who, event) * 2)
        end = 2 if synchronous else begin + 1
        event += 1
        for k in range(begin, end):
            i = order[k]
            seen[i] = latest(ring_t, ring_x, head, read, 1 - i, t, delay)
        for k in range(begin, end):
            i = order[k]
            own, rival = np.float32((prices[i] - middle_price) / half), np.float32((seen[i] - middle_price) / half)
            if not first_move[i]:
                row = replay[i, filled[i] % memory]
                row[0], row[1], row[2] = before[i, 0], before[i, 1], before[i, 2]
                row[3], row[4], row[5], row[6] = flow[i], kept[i], own, rival
                filled[i] += 1
            first_move[i] = False
            flow[i], kept[i] = 0.0, 1.0
            if moved >= warm and filled[i] >= rows:
                count = min(filled[i], memory)
                for b in range(rows):
                    pick = int(uniform(picks, moved * rows + b) * count)
                    for c in range(7):
                        batch[b, c] = replay[i, pick, c]
                steps[i] += 1
                learn_once(
                    batch, actors[0, i], actors[1, i], actors[2, i], actors[3, i], critics[0, i], critics[1, i],
                    critics[2, i], critics[3, i], steps[i], actor_lr, critic_lr, soft, space, said[moved],
                )  # fmt: skip
                if not said[moved, 1] < RUNAWAY or not said[moved, 2] < RUNAWAY * RUNAWAY:
                    ended[0] = moved
                    return
            if moved < warm:
                action = np.float32(2 * uniform(warmth, moved) - 1)
            else:
                one[0, 0], one[0, 1] = own, rival
                forward(actors[0, i], one, one_1, one_2, one_out)
                sigma = noise_first * (noise_last / noise_first) ** min(1.0, moved / quiet)
                noisy = math.tanh(one_out[0]) + sigma * normal(noises, moved)
                action = np.float32(min(1.0, max(-1.0, noisy)))
            before[i, 0], before[i, 1], before[i, 2] = own, rival, action
            price = middle_price + half * action
            movers[moved] = i
            trace[moved, 0], trace[moved, 1], trace[moved, 2], trace[moved, 3] = t, prices[i], seen[i], price
            if not push(ring_t, ring_x, head, read, i, t, price, delay):
                ended[0] = -2
                return
            moved += 1
            if moved == late:
                for j in range(2):
                    for p in range(middle.shape[1]):
                        middle[j, p] = actors[0, j, p]
        for k in range(begin, end):  # after all have looked
            prices[order[k]] = trace[moved - (end - k), 3]
        if since == 0.0 and moved >= late:
            since = t
            for i in range(2):
                averages[0, i] = averages[1, i] = 0.0
        profit_flows(prices, quality, cost, outside, mu, profit)
        for i in range(2):
            profit[i] = (profit[i] - profit_low) / profit_span
    for i in range(2):
        averages[0, i] /= t - since
        averages[1, i] /= t - since
