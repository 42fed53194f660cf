"""What prices say about each other: reaction to the rival, mutual information at lags, recovery after a shock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from stretto.data.arrays import Floats
from stretto.games.pricing.engine import Clocks, Engine, Policy, Trace, Turn, check_policies, play
from stretto.games.pricing.logit import Market
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number, of_type


def regress(own: ArrayLike, rival: ArrayLike) -> tuple[float, float]:
    """Slope and R^2 of ``own`` [n] on ``rival`` [n] (least squares with a constant); both 0 if either is constant.
    ``ConfigError`` with fewer than three pairs."""
    y, x = _pair("regress", own, rival)
    if x.std() < 1e-12 or y.std() < 1e-12:
        return 0.0, 0.0
    line = stats.linregress(x, y)
    return float(line.slope), float(line.rvalue**2)


def mutual_information(own: ArrayLike, rival: ArrayLike, bins: int = 6) -> float:
    """Nats between ``own`` [n] and ``rival`` [n], in ``bins`` equally filled bins each [inferred], less the bias
    (cells used - rows used - columns used + 1) / 2n (Miller and Madow 1955); so it may come out a little below
    zero."""
    y, x = _pair("mutual_information", own, rival)
    number("mutual_information", "bins", bins, 2, 1000, whole=True)
    edges = np.linspace(0, 1, int(bins) + 1)[1:-1]
    rows, columns = (np.searchsorted(np.quantile(z, edges), z) for z in (y, x))
    table = np.zeros((int(bins), int(bins)))
    np.add.at(table, (rows, columns), 1)
    p = table / y.size
    outer = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    on = p > 0
    plug_in = float((p[on] * np.log(p[on] / outer[on])).sum())
    used = int(on.sum()) - int((p.sum(1) > 0).sum()) - int((p.sum(0) > 0).sum()) + 1
    return plug_in - used / (2 * y.size)


@dataclass(frozen=True)
class Signal:
    """Of one firm in one stretch: ``slope`` and ``fit`` (R^2) of its price on the rival's price that it saw when it
    set it, and ``information`` [lags] between its price and the rival's seen ``lags`` own events before."""

    slope: float
    fit: float
    information: Floats


def signalling(own: ArrayLike, seen: ArrayLike, lags: Sequence[int] = tuple(range(1, 11))) -> Signal:
    """``own`` [n]: prices in the order of the firm's events; ``seen`` [n]: the rival's price that it saw at each.
    ``ConfigError`` if the stretch is shorter than the longest lag plus three."""
    y, x = _pair("signalling", own, seen)
    behind = array("signalling", "lags", lags, (None,))
    if not behind.size or behind.min() < 0 or behind.max() > y.size - 3 or (behind % 1).any():
        raise ConfigError(f"signalling: lags = {lags} must be whole, from 0 to {y.size - 3} for {y.size} events")
    slope, fit = regress(y, x)
    return Signal(slope, fit, np.array([mutual_information(y[lag:], x[: y.size - lag]) for lag in behind.astype(int)]))


def shock(
    market: Market,
    clocks: Clocks,
    policies: Sequence[Policy],
    prices: ArrayLike,
    seed: int = 0,
    settle: int = 200,
    events: int = 20,
) -> tuple[float, Trace, int]:
    """Greedy play from ``prices`` [2]; after ``settle`` moves firm 1 sets p_B for one event, then ``events`` own
    greedy ones. Returns the recovery (p_last - p_B) / (p_pre - p_B) of firm 1's price (NaN if p_pre is within 1e-6 of
    p_B), the trace, and the number of the move of the shock. 1: all came back; 0: it stayed at p_B."""
    of_type("shock", market=(market, Market), clocks=(clocks, Clocks))
    if market.firms != 2:
        raise ConfigError(f"shock: market has {market.firms} firms but must have 2")
    check_policies("shock", policies, 2)
    settle = int(number("shock", "settle", settle, 1, 1e7, whole=True))
    events = int(number("shock", "events", events, 1, 1e7, whole=True))
    low = float(market.bertrand[1])
    done: list[float] = []
    before: list[float] = []

    def force(turn: Turn, firm: int) -> float | None:
        if firm != 1 or turn.time < start or done:
            return None
        done.append(turn.time)
        before.append(engine.prices[1])
        return low

    per = 2 * clocks.rate
    start = settle / per
    engine = Engine(market, clocks, prices, seed)
    moves = settle + 8 * events
    while True:
        trace = play(engine, policies, moves, force)
        own = np.flatnonzero((trace.mover == 1) & (trace.time >= (done[0] if done else math.inf)))
        if own.size > events:
            break
        engine, moves = Engine(market, clocks, prices, seed), 2 * moves  # the same path, longer
        done.clear()
        before.clear()
    first, last = int(own[0]), int(own[events])
    kept = replace(trace, **{n: getattr(trace, n)[: last + 1] for n in ("time", "mover", "seen", "set", "prices")})
    gap = before[0] - low
    return (float(trace.set[last] - low) / gap if abs(gap) > 1e-6 else math.nan), kept, first


def _pair(where: str, own: ArrayLike, rival: ArrayLike) -> tuple[Floats, Floats]:
    y = array(where, "own", own, (None,))
    x = array(where, "rival", rival, (y.size,))
    if y.size < 3:
        raise ConfigError(f"{where}: own holds {y.size} events but must hold at least 3")
    return y, x
