"""A market in continuous time: sellers reprice when their own Poisson clocks fire, and see rivals late.

Two [inferred] readings of arXiv 2606.09884, both exact between events:

* N clocks of rate lambda, merged: the next event comes after Exp(N lambda), the mover is uniform. ``synchronous``: all
  move every 1/lambda, each on the prices from before the tick.
* At its event firm i sees its own price and the rivals' prices in force at t - delta, then sets a price, which holds
  until its next event.

Between two own events the firm earns, piece by piece of constant prices, K (1 - e^{-rho dt}) pi_i, where K =
e^{-rho (time since the own event)}; its value at the next event counts e^{-rho Dt}. With this normalised flow a
constant profit pi is worth pi whatever lambda is. Multiplying (rho, lambda, 1/delta) by one number changes nothing but
the unit of time. Time, profits and rewards are float64; draw k of a seed belongs to event k.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.pricing.logit import Market
from stretto.kernel.errors import ConfigError
from stretto.tabular import counter
from stretto.tabular.arguments import array, index_in, number, of_type
from stretto.tabular.delay import DelayLine, Delays

SEED_END, _LONGEST = 2.0**63, 1e6
GAPS, MOVERS = 80, 81  # streams of the counter
Policy = Callable[[Floats], float]
"""Observation [N] (own price first, rivals in order) -> price."""


@dataclass(frozen=True)
class Clocks:
    """When firms move and what they see. ``rate``: lambda > 0, events of a firm per unit of time. ``delay``: delta >=
    0. ``rho`` > 0: discount rate. ``labels``: ``labels[k]`` is the firm to which everything drawn for number k
    belongs (None: k), so that a permutation relabels the firms and changes nothing else. ``ConfigError`` if a number
    is out of range or ``labels`` isn't a permutation."""

    rate: float = 1.0
    delay: float = 0.0
    rho: float = -math.log(0.95)
    synchronous: bool = False
    labels: Sequence[int] | None = None

    def __post_init__(self) -> None:
        number("Clocks", "rate", self.rate, high=1e100, above=0)
        number("Clocks", "rate", self.rate, 1e-100)
        number("Clocks", "delay", self.delay, 0)
        number("Clocks", "rho", self.rho, above=0)
        of_type("Clocks", synchronous=(self.synchronous, bool))
        if self.rate * self.delay > _LONGEST:
            raise ConfigError(f"Clocks: delay = {self.delay} must be at most {_LONGEST / self.rate:g}, 1e6 events long")
        if self.labels is None:
            return
        try:
            order = np.asarray(self.labels)
        except ValueError:
            order = np.empty(0)
        if order.ndim != 1 or order.dtype.kind not in "iu" or sorted(order) != list(range(max(1, order.size))):
            raise ConfigError(f"Clocks: labels = {self.labels} must hold each of 0 .. N - 1 once")
        object.__setattr__(self, "labels", tuple(order.tolist()))

    @property
    def live(self) -> Clocks:
        """The same clocks without latency: every firm sees the rivals' present prices."""
        return replace(self, delay=0.0)

    @property
    def latency(self) -> float:
        """The delay to compare times with: ``delay``; between ticks, half a tick below the whole number of ticks that
        it takes, so that rounding of the times doesn't decide what is seen."""
        if not self.synchronous or not self.delay:
            return self.delay
        ticks = self.rate * self.delay
        return (max(1, math.ceil(ticks * (1 - 1e-9))) - 0.5) / self.rate

    def order(self, firms: int) -> Ints:
        """``labels`` of ``firms`` firms as an int array [N]; 0 .. N-1 without labels. ``ConfigError`` if there are more
        or fewer labels."""
        firms = int(number("Clocks.order", "firms", firms, 1, whole=True))
        if self.labels is not None and len(self.labels) != firms:
            raise ConfigError(f"Clocks: labels = {self.labels} must name {firms} firms")
        return np.arange(firms) if self.labels is None else np.asarray(self.labels, np.int64)


@dataclass(frozen=True)
class Turn:
    """One event, M movers (one, or all if synchronous). ``seen`` [M, N]: each mover's observation, own price first.
    ``rewards`` [M], ``factors`` [M]: normalised flow since the mover's last event, and e^{-rho Dt}."""

    time: float
    movers: tuple[int, ...]
    seen: Floats
    rewards: Floats
    factors: Floats


class Engine:
    """The market from one event to the next. ``prices`` [N]: in force from t = 0 on (and, to observers, before).
    Call ``advance`` for the next event, then ``set`` for each of its movers. ``profit`` [N]: flow now in force;
    ``pieces`` [N]: what the last ``advance`` added to each firm's reward."""

    def __init__(self, market: Market, clocks: Clocks, prices: ArrayLike, seed: int = 0) -> None:
        of_type("Engine", market=(market, Market), clocks=(clocks, Clocks))
        self.market, self.clocks = market, clocks
        self.prices = array("Engine", "prices", prices, (market.firms,)).copy()
        seed = int(number("Engine", "seed", seed, 0, below=SEED_END, whole=True))
        self._order = clocks.order(market.firms)
        self._gaps, self._who = counter.key(seed, GAPS), counter.key(seed, MOVERS)
        law = Delays("constant", clocks.latency)
        self._lines = [DelayLine(law, initial=float(p)) for p in self.prices]
        self.time, self.events = 0.0, 0
        self.flow, self.kept = np.zeros(market.firms), np.ones(market.firms)
        self.pieces = np.zeros(market.firms)
        self.profit = market.profit(self.prices)
        self._waiting: list[int] = []

    def advance(self) -> Turn:
        """Runs to the next event. ``ConfigError`` while a mover of the last one hasn't set its price."""
        if self._waiting:
            raise ConfigError(f"Engine.advance: set the price of firm {self._waiting[0]} first")
        n = self.market.firms
        if self.clocks.synchronous:
            gap, movers = 1 / self.clocks.rate, tuple(int(i) for i in self._order)
        else:
            gap = -math.log1p(-counter.uniform(self._gaps, self.events)) / (n * self.clocks.rate)
            movers = (int(self._order[int(counter.uniform(self._who, self.events) * n)]),)
        self.events += 1
        self._accrue(gap)
        self.time += gap
        seen = np.array([self.observe(i) for i in movers])
        turn = Turn(self.time, movers, seen, self.flow[list(movers)], self.kept[list(movers)])
        for i in movers:
            self.flow[i], self.kept[i] = 0.0, 1.0
        self._waiting = list(movers)
        return turn

    def observe(self, firm: int) -> Floats:
        """What ``firm`` sees now [N]: its own price, then the rivals' in force at t - delta."""
        firm = index_in("Engine.observe", "firm", firm, self.market.firms)
        rivals = [self._lines[j].latest(self.time) for j in range(self.market.firms) if j != firm]
        return np.array([self.prices[firm], *rivals])

    def set(self, firm: int, price: float) -> None:
        """Let ``firm``, a mover of the last event, set its ``price``. ``ConfigError`` if it isn't its turn."""
        if firm not in self._waiting:
            raise ConfigError(f"Engine.set: firm = {firm} doesn't move now; waiting: {self._waiting}")
        self.prices[firm] = number("Engine.set", "price", price)
        self._lines[firm].push(self.time, float(price))
        self._waiting.remove(firm)
        if not self._waiting:
            self.profit = self.market.profit(self.prices)

    def _accrue(self, gap: float) -> None:
        rho = self.clocks.rho
        gone, left = -math.expm1(-rho * gap), math.exp(-rho * gap)
        for i in range(self.market.firms):
            self.pieces[i] = self.kept[i] * gone * self.profit[i]
            self.flow[i] += self.pieces[i]
            self.kept[i] *= left


@dataclass(frozen=True)
class Trace:
    """A played market, T moves in order: ``time`` [T], ``mover`` [T], the mover's observation ``seen`` [T, N] and the
    price that it ``set`` [T]; ``prices`` [T, N] in force after the move."""

    time: Floats
    mover: Ints
    seen: Floats
    set: Floats
    prices: Floats

    def own(self, firm: int) -> Ints:
        """Places in the trace [n] at which ``firm`` moved."""
        return np.flatnonzero(self.mover == index_in("Trace.own", "firm", firm, self.prices.shape[1]))


def check_policies(where: str, policies: object, firms: int) -> None:
    """Raise ``ConfigError`` unless ``policies`` holds one function for each of ``firms`` firms."""
    if not isinstance(policies, Sequence) or len(policies) != firms or not all(map(callable, policies)):
        raise ConfigError(f"{where}: policies must hold one function for each of {firms} firms")


def box_of(where: str, box: ArrayLike) -> tuple[float, float]:
    """``box`` as (lowest, highest price). ``ConfigError`` unless they rise, and lie within +-1e6."""
    low, high = array(where, "box", box, (2,))
    number(where, "box[0]", low, -1e6)
    number(where, "box[1]", high, high=1e6, above=float(low))
    return float(low), float(high)


def play(
    engine: Engine, policies: Sequence[Policy], moves: int, force: Callable[[Turn, int], float | None] | None = None
) -> Trace:
    """``moves`` moves (at least) of ``engine``, firm i by ``policies[i]``. ``force(turn, firm)`` gives a price that
    firm must set at this turn instead, or None. ``ConfigError`` if there isn't one policy a firm."""
    of_type("play", engine=(engine, Engine))
    check_policies("play", policies, engine.market.firms)
    if force is not None and not callable(force):
        raise ConfigError(f"play: force must be a function; got {type(force).__name__}")
    number("play", "moves", moves, 1, whole=True)
    rows: list[tuple[float, int, Floats, float, Floats]] = []
    while len(rows) < moves:
        turn = engine.advance()
        for i, seen in zip(turn.movers, turn.seen, strict=True):
            forced = None if force is None else force(turn, i)
            name, said = (f"policies[{i}]'s price", policies[i](seen)) if forced is None else ("force's price", forced)
            price = number("play", name, said)
            engine.set(i, price)
            rows.append((turn.time, i, seen, price, engine.prices.copy()))
    time, mover, seen_, price_, prices = zip(*rows, strict=True)
    return Trace(np.array(time), np.array(mover), np.array(seen_), np.array(price_), np.array(prices))
