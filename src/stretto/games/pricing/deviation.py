"""Is a learned pair of price policies an equilibrium? Freeze the rival and solve the firm's problem on a price grid.

Without latency the prices in force are the whole state. Asynchronous, after an event at prices p, with g = 2 lambda /
(2 lambda + rho) the mean factor to the next event of either clock:

    W(p) = (1 - g) pi_i(p) + g / 2 (max_a W(a, p_j) + W(p_i, phi_j(p_j, p_i)));    synchronous, g = e^{-rho / lambda}:
    W(p) = (1 - g) pi_i(p) + g max_a W(a, phi_j(p_j, p_i)).

The value of the firm's own policy has phi_i in place of the maximum. Both are solved by value iteration; a gain > 0
where play goes says "not an equilibrium". Policies are rounded to the grid, the firm's own alike.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.pricing.engine import Clocks
from stretto.games.pricing.logit import Market
from stretto.games.pricing.tabular import profit_table
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, increasing, index_in, of_type

_SETTLE, _AVERAGE, _TOLERANCE = 2000, 1000, 1e-11
_SHORTEST = 1e-5  # rho / rate: value iteration takes about 25 rate / rho steps


def to_grid(grid: ArrayLike, prices: ArrayLike) -> Ints:
    """Places of the grid prices nearest to ``prices`` [...]; ``grid`` [G] increases."""
    g = increasing("to_grid", "grid", grid, 1)
    return np.asarray(np.searchsorted((g[1:] + g[:-1]) / 2, array("to_grid", "prices", prices)))


def deviation(
    market: Market, clocks: Clocks, grid: ArrayLike, policies: ArrayLike, start: ArrayLike
) -> tuple[Floats, Floats]:
    """Gain of the best response over the firm's own policy [2], in normalised flow profit / (pi_M - pi_B), weighted by
    the prices that play visits in the long run from ``start`` [2] (numbers of prices), and the value of own play [2].
    ``policies`` [2, G, G]: numbers of prices at (own, rival). ``ConfigError`` if the clocks have a latency (then
    prices aren't the state; ``clocks.live`` takes it off), or shapes don't match."""
    of_type("deviation", market=(market, Market), clocks=(clocks, Clocks))
    prices = increasing("deviation", "grid", grid, 1)
    try:
        phi = np.asarray(policies)
    except ValueError:
        phi = np.empty(0)
    n = prices.size
    first = [index_in("deviation", "start", x, n) for x in array("deviation", "start", start, (2,))]
    if phi.shape != (2, n, n) or not np.issubdtype(phi.dtype, np.integer) or phi.min() < 0 or phi.max() >= n:
        raise ConfigError(f"deviation: policies must be numbers of prices [2, {n}, {n}] from 0 to {n - 1}")
    if clocks.delay:
        raise ConfigError(f"deviation: clocks have delay = {clocks.delay}; the check is exact without: use clocks.live")
    if clocks.rho < _SHORTEST * clocks.rate:
        raise ConfigError(f"deviation: clocks have rho = {clocks.rho}, too small for value iteration at this rate")
    table = profit_table(market, prices)
    low, high = market.bounds
    visits = _visits(phi, np.array(first), clocks.synchronous)
    gains, values = np.empty(2), np.empty(2)
    for i in range(2):
        flow = table[i] if i == 0 else table[i].T  # [own, rival]
        own, rival = phi[i], phi[1 - i].T  # at [own, rival]
        weight = visits if i == 0 else visits.T
        kept, best = (float((weight * _solve(flow, p, rival, clocks)).sum()) for p in (own, None))
        gains[i], values[i] = (best - kept) / (high - low), kept
    return gains, values


def _solve(flow: Floats, own: Ints | None, rival: Ints, clocks: Clocks) -> Floats:
    """Values W [own, rival] of the policy ``own``, of the best response if None."""
    rows, columns = np.indices(flow.shape)
    if clocks.synchronous:
        g = math.exp(-clocks.rho / clocks.rate)
    else:
        g = 2 * clocks.rate / (2 * clocks.rate + clocks.rho)
    value = flow.copy()
    while True:
        if clocks.synchronous:
            then = value.max(0)[rival] if own is None else value[own, rival]
        else:
            mine = np.broadcast_to(value.max(0), flow.shape) if own is None else value[own, columns]
            then = (mine + value[rows, rival]) / 2
        new = (1 - g) * flow + g * then
        if np.abs(new - value).max() < _TOLERANCE * (1 - g):
            return np.asarray(new)
        value = new


def _visits(phi: Ints, start: Ints, synchronous: bool) -> Floats:
    """Share of events after which prices (firm 0, firm 1) are in force, in the long run (a mean over many events, so
    cycles count, too)."""
    n = phi.shape[1]
    first, second = np.indices((n, n))
    a, b = phi[0], phi[1].T  # both at [price of firm 0, price of firm 1]
    if synchronous:
        moves = [(a * n + b).ravel()]
    else:
        moves = [(a * n + second).ravel(), (first * n + b).ravel()]
    now, mean = np.zeros(n * n), np.zeros(n * n)
    now[int(start[0]) * n + int(start[1])] = 1.0
    for k in range(_SETTLE + _AVERAGE):
        now = np.asarray(sum(np.bincount(m, now, n * n) for m in moves)) / len(moves)
        if k >= _SETTLE:
            mean += now / _AVERAGE
    return mean.reshape(n, n)
