"""Q-learning sellers on a price grid: the fast version of asynchronous pricing, seeds in parallel.

Each of two firms keeps Q[own price, rival's observed price, action] and updates it at its own events with the
engine's reward R and factor F:

    Q(s, a) += alpha (R + F max_b Q(s', b) - Q(s, a)),    then explores with probability exp(-beta n), n own events.

It stops when ``stable`` successive updates left the greedy action of their state unchanged, then plays greedily.
Constants [inferred] but for the original's: beta 4e-6, discount .95 a period, 1e5 stable periods (Calvano et al. 2020).
``tabular_reference.learn`` is the same loop in plain Python over ``engine.Engine``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike

from stretto.data.arrays import Bools, Floats, Ints
from stretto.games.pricing.clockwork import accrue, capacity, gap_of, latest, push, start
from stretto.games.pricing.engine import GAPS, MOVERS, Clocks
from stretto.games.pricing.logit import Market
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, distinct_seeds, increasing, number, of_type
from stretto.tabular.counter import key, uniform
from stretto.tabular.threads import start_threads

_MOST = 1e10  # events of a firm in an evaluation
EXPLORE, STARTS = 82, 83  # streams of the counter


@dataclass(frozen=True)
class QLearning:
    """Constants of the learner. ``step``: alpha. ``decay``: beta of the exploration. ``stable``: successive updates
    without a change of a greedy action at which it stops; ``limit``: moves at which it stops anyway. ``evaluate``:
    units of time of greedy play. ``ConfigError`` if out of range."""

    step: float = 0.15
    decay: float = 2e-5
    stable: int = 100_000
    limit: int = 20_000_000
    evaluate: float = 2e4

    def __post_init__(self) -> None:
        number("QLearning", "step", self.step, above=0, high=1)
        number("QLearning", "decay", self.decay, 0)
        for name in ("stable", "limit"):
            count = int(number("QLearning", name, getattr(self, name), 1, 1e15, whole=True))
            object.__setattr__(self, name, count)
        number("QLearning", "evaluate", self.evaluate, above=0)


@dataclass(frozen=True)
class Learned:
    """S runs. ``values`` [S, 2, m, m, m]: Q of each firm (own, observed rival, action). ``policy`` [S, 2, m, m]:
    greedy actions. ``profit`` [S, 2], ``price`` [S, 2]: time averages of greedy play; ``explored`` [S, 2]: profit
    over the last ``stable`` updates, with the exploration that was left. ``moves`` [S]; ``settled`` [S]: it stopped
    by itself. ``last`` [S, 2]: numbers of the prices in force at the end."""

    grid: Floats
    values: Floats
    policy: Ints
    profit: Floats
    price: Floats
    explored: Floats
    moves: Ints
    settled: Bools
    last: Ints


def price_grid(market: Market, prices: int = 15, margin: float = 0.1) -> Floats:
    """``prices`` even prices [m] from p_B - margin (p_M - p_B) to p_M + margin (p_M - p_B), of the lowest p_B and the
    highest p_M among the firms."""
    of_type("price_grid", market=(market, Market))
    if market.firms < 2:
        raise ConfigError("price_grid: market has one firm, so p_B = p_M; it needs at least two")
    number("price_grid", "prices", prices, 2, whole=True)
    number("price_grid", "margin", margin, 0)
    low, high = float(market.bertrand.min()), float(market.monopoly.max())
    return np.linspace(low - margin * (high - low), high + margin * (high - low), int(prices))


def profit_table(market: Market, grid: ArrayLike) -> Floats:
    """Profit flows [2, m, m] of both firms at (price of firm 0, price of firm 1). ``ConfigError`` unless the market
    has two firms."""
    of_type("profit_table", market=(market, Market))
    prices = array("profit_table", "grid", grid, (None,))
    if not prices.size:
        raise ConfigError("profit_table: grid must hold at least one price")
    if market.firms != 2:
        raise ConfigError(f"profit_table: market has {market.firms} firms but must have 2")
    pairs = np.stack(np.meshgrid(prices, prices, indexing="ij"), -1)
    return np.ascontiguousarray(np.moveaxis(market.profit(pairs), -1, 0))


def first_values(table: Floats) -> Floats:
    """Q_0 [2, m, m, m]: the mean profit of each action against a uniform rival, whatever the state."""
    table = array("first_values", "table", table, (2, None, None))
    mean = np.stack([table[0].mean(1), table[1].mean(0)])
    m = table.shape[1]
    return np.ascontiguousarray(np.broadcast_to(mean[:, None, None, :], (2, m, m, m)))


def learn(
    market: Market,
    clocks: Clocks,
    seeds: Sequence[int],
    learner: QLearning | None = None,
    grid: ArrayLike | None = None,
) -> Learned:
    """Runs one pair of sellers a seed, in parallel; a run depends on its seed alone. ``grid``: prices [m], ascending
    (None: ``price_grid``). ``ConfigError`` for a market of other than two firms, or a grid that doesn't rise."""
    which = distinct_seeds("learn", seeds)
    learner = QLearning() if learner is None else learner
    of_type("learn", market=(market, Market), clocks=(clocks, Clocks), learner=(learner, QLearning))
    prices = price_grid(market) if grid is None else increasing("learn", "grid", grid)
    if clocks.rate * learner.evaluate > _MOST:
        raise ConfigError(f"learn: evaluate = {learner.evaluate} holds over {_MOST:g} events at rate {clocks.rate}")
    table, n = profit_table(market, prices), which.size
    q = np.repeat(first_values(table)[None], n, 0)
    policy = q.argmax(-1)
    averages, moves = np.zeros((n, 3, 2)), np.zeros((n, 3), np.int64)
    last = np.zeros((n, 2), np.int64)
    start_threads()
    _learn(
        which, table, prices, q, policy, averages, moves, last, clocks.order(2), clocks.rate, clocks.latency,
        clocks.rho, clocks.synchronous, learner.step, learner.decay, learner.stable, learner.limit, learner.evaluate,
        capacity(clocks),
    )  # fmt: skip
    if moves[:, 2].any():
        raise ConfigError(f"learn: rate {clocks.rate} x delay {clocks.delay} overran the kept prices; report the seed")
    return Learned(
        prices, q, policy, averages[:, 0], averages[:, 1], averages[:, 2], moves[:, 0], moves[:, 1] > 0, last
    )


@njit(parallel=True, cache=True, error_model="numpy")
def _learn(
    seeds: Ints, table: Floats, grid: Floats, q: Floats, policy: Ints, averages: Floats, moves: Ints, last: Ints,
    order: Ints, rate: float, delay: float, rho: float, synchronous: bool, step: float, decay: float, stable: int,
    limit: int, evaluate: float, cap: int,
) -> None:  # fmt: skip
    for s in prange(seeds.size):
        _run(
            seeds[s], table, grid, q[s], policy[s], averages[s], moves[s], last[s], order, rate, delay, rho,
            synchronous, step, decay, stable, limit, evaluate, cap,
        )  # fmt: skip


@njit(cache=True, error_model="numpy")
def _run(
    seed: int, table: Floats, grid: Floats, q: Floats, policy: Ints, averages: Floats, moves: Ints, last: Ints,
    order: Ints, rate: float, delay: float, rho: float, synchronous: bool, step: float, decay: float, stable: int,
    limit: int, evaluate: float, cap: int,
) -> None:  # fmt: skip
    """One pair of sellers: learning, then greedy play. ``moves``: number, settled, overrun."""
    m = grid.size
    gaps, who, chance = key(seed, GAPS), key(seed, MOVERS), key(seed, EXPLORE)
    starts = key(seed, STARTS)
    ring_t, ring_x = np.empty((2, cap)), np.empty((2, cap))
    head, read = np.zeros(2, np.int64), np.zeros(2, np.int64)
    now, own = last, np.zeros(2, np.int64)
    flow, kept, profit = np.zeros(2), np.ones(2), np.zeros(2)
    state, action = np.full((2, 2), -1), np.zeros(2, np.int64)
    seen = np.zeros(2, np.int64)
    total, paid = np.zeros(2), np.zeros(2)
    for k in range(2):
        now[order[k]] = int(uniform(starts, k) * m)
    for i in range(2):
        start(ring_t, ring_x, head, read, i, float(now[i]))
        profit[i] = table[i, now[0], now[1]]
    t, calm, since, moved, event = 0.0, 0, 0.0, 0, 0
    learning = True
    while True:
        gap = 1 / rate if synchronous else gap_of(uniform(gaps, event), rate)
        if not learning and t + gap > since + evaluate:
            gap = since + evaluate - t  # the last piece ends with the evaluation
        for i in range(2):
            total[i] += gap * profit[i]
            paid[i] += gap * grid[now[i]]
        if learning:
            accrue(flow, kept, profit, gap, rho)
        t += gap
        if not learning and t >= since + evaluate:
            break
        first = 0 if synchronous else int(uniform(who, event) * 2)
        event += 1
        for k in range(first, 2 if synchronous else first + 1):
            i = order[k]
            seen[i] = int(latest(ring_t, ring_x, head, read, 1 - i, t, delay))
        for k in range(first, 2 if synchronous else first + 1):
            i = order[k]
            a, b = state[i, 0], state[i, 1]
            own_now, rival = now[i], seen[i]
            if learning:
                if a >= 0:
                    best = q[i, own_now, rival, policy[i, own_now, rival]]
                    target = flow[i] + kept[i] * best
                    if _update(q, policy, i, a, b, action[i], step, target):
                        calm, since = 0, t
                        total[0] = total[1] = paid[0] = paid[1] = 0.0
                    else:
                        calm += 1
                flow[i], kept[i] = 0.0, 1.0
                choice = policy[i, own_now, rival]
                if uniform(chance, 2 * moved) < math.exp(-decay * own[i]):
                    choice = int(uniform(chance, 2 * moved + 1) * m)
                state[i, 0], state[i, 1], action[i] = own_now, rival, choice
                own[i] += 1
            else:
                choice = policy[i, own_now, rival]
            moved += 1
            last[i] = choice
            if not push(ring_t, ring_x, head, read, i, t, float(choice), delay):
                moves[2] = 1
        for i in range(2):
            profit[i] = table[i, now[0], now[1]]
        if learning and (calm >= stable or moved >= limit):
            learning = False
            moves[0], moves[1] = moved, calm >= stable
            for i in range(2):
                averages[2, i] = total[i] / (t - since) if t > since else profit[i]
                total[i] = paid[i] = 0.0
            since = t
    for i in range(2):
        averages[0, i], averages[1, i] = total[i] / evaluate, paid[i] / evaluate


@njit(cache=True, error_model="numpy")
def _update(q: Floats, policy: Ints, i: int, a: int, b: int, action: int, step: float, target: float) -> bool:
    """One step of Q towards ``target``; keeps ``policy`` (the first of the largest) and says whether it changed."""
    old, best = q[i, a, b, action], policy[i, a, b]
    new = old + step * (target - old)
    q[i, a, b, action] = new
    choice = best
    if action != best:
        top = q[i, a, b, best]
        if new > top or (new == top and action < best):
            choice = action
    elif new < old:
        choice = 0
        for x in range(1, q.shape[3]):
            if q[i, a, b, x] > q[i, a, b, choice]:
                choice = x
    policy[i, a, b] = choice
    return choice != best
