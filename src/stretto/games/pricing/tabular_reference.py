"""``tabular.learn`` for one seed in plain Python, over ``engine.Engine`` and its delay lines: the same uniforms, the
same numbers bit for bit. Slow; for tests and for reading."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.pricing.engine import Clocks, Engine
from stretto.games.pricing.logit import Market
from stretto.games.pricing.tabular import EXPLORE, STARTS, QLearning, first_values, price_grid, profit_table
from stretto.tabular.arguments import increasing, of_type
from stretto.tabular.counter import key, uniform


def learn_reference(
    market: Market, clocks: Clocks, seed: int, learner: QLearning, grid: ArrayLike | None = None
) -> tuple[Floats, Ints, int]:
    """Q [2, m, m, m], the prices in force at the end of learning [2] (their numbers), and the number of moves."""
    of_type("learn_reference", market=(market, Market), clocks=(clocks, Clocks), learner=(learner, QLearning))
    prices = price_grid(market) if grid is None else increasing("learn_reference", "grid", grid)
    number = {float(p): k for k, p in enumerate(prices)}
    q = first_values(profit_table(market, prices)).copy()
    chance, starts = key(seed, EXPLORE), key(seed, STARTS)
    first = np.empty(2)
    for k, firm in enumerate(clocks.order(2)):
        first[firm] = prices[int(uniform(starts, k) * prices.size)]
    engine = Engine(market, clocks, first, seed)
    last: list[tuple[int, int, int] | None] = [None, None]
    own, moved, calm = [0, 0], 0, 0
    while moved < learner.limit and calm < learner.stable:
        turn = engine.advance()
        for j, i in enumerate(turn.movers):
            state = number[turn.seen[j, 0]], number[turn.seen[j, 1]]
            before = last[i]
            if before is not None:
                row = q[i, before[0], before[1]]
                greedy = int(row.argmax())
                target = turn.rewards[j] + turn.factors[j] * q[i][state].max()
                row[before[2]] = row[before[2]] + learner.step * (target - row[before[2]])
                calm = calm + 1 if int(row.argmax()) == greedy else 0
            action = int(q[i][state].argmax())
            if uniform(chance, 2 * moved) < math.exp(-learner.decay * own[i]):
                action = int(uniform(chance, 2 * moved + 1) * prices.size)
            last[i] = (*state, action)
            own[i] += 1
            moved += 1
            engine.set(i, float(prices[action]))
    return q, np.array([number[float(p)] for p in engine.prices]), moved
