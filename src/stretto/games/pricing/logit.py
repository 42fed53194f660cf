"""Logit demand and its exact prices: Bertrand, joint monopoly, best response, and the collusion index. Any number of
firms.

    D_i = exp((a_i - p_i)/mu) / (sum_j exp((a_j - p_j)/mu) + exp(a_0/mu)),    pi_i = (p_i - c_i) D_i

The default is the duopoly of Calvano, Calzolari, Denicolo and Pastorello, "Artificial Intelligence, Algorithmic
Pricing, and Collusion" (AER 2020): a = 2, c = 1, a_0 = 0, mu = 1/4. A price cap isn't needed: each firm's profit has
one interior maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
from numba import njit
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, index_in, number, of_type

_XTOL, _STEPS = 1e-14, 10_000


@dataclass(frozen=True)
class Market:
    """N firms with qualities a_i [N], unit costs c_i [N], the outside good's a_0 and the differentiation mu > 0.
    ``ConfigError`` if the lists differ in length, hold no firm, or mu isn't positive."""

    quality: Sequence[float] = (2.0, 2.0)
    cost: Sequence[float] = (1.0, 1.0)
    outside: float = 0.0
    mu: float = 0.25

    def __post_init__(self) -> None:
        quality = array("Market", "quality", self.quality, (None,))
        if quality.size < 1:
            raise ConfigError("Market: quality must name at least one firm")
        cost = array("Market", "cost", self.cost, (quality.size,))
        object.__setattr__(self, "quality", tuple(quality.tolist()))
        object.__setattr__(self, "cost", tuple(cost.tolist()))
        number("Market", "outside", self.outside)
        number("Market", "mu", self.mu, above=0)

    @property
    def firms(self) -> int:
        """N, the number of firms."""
        return len(self.quality)

    def demand(self, prices: ArrayLike) -> Floats:
        """Market shares D [.., N] of the firms at ``prices`` [.., N]; the rest buys the outside good."""
        p = _prices("demand", self, prices)
        with np.errstate(over="ignore"):
            scale = (np.asarray(self.quality) - p) / self.mu
        if not np.isfinite(scale).all():
            raise ConfigError("demand: prices are too far from quality, in units of mu, for float64")
        top = np.maximum(scale.max(-1, keepdims=True), self.outside / self.mu)  # so that nothing overflows
        weight = np.exp(scale - top)
        return np.asarray(weight / (weight.sum(-1, keepdims=True) + np.exp(self.outside / self.mu - top)))

    def profit(self, prices: ArrayLike) -> Floats:
        """Profit of each firm per unit of time, pi [.., N], at ``prices`` [.., N]."""
        p = _prices("profit", self, prices)
        return np.asarray((p - np.asarray(self.cost)) * self.demand(p))

    @cached_property
    def bertrand(self) -> Floats:
        """Prices [N] of the one-shot Nash equilibrium (Bertrand competition)."""
        return bertrand(self)

    @cached_property
    def monopoly(self) -> Floats:
        """Prices [N] that maximise the firms' joint profit."""
        return monopoly(self)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """(pi_B, pi_M): a firm's mean profit per unit of time at the Bertrand and at the joint-monopoly prices."""
        return float(self.profit(self.bertrand).mean()), float(self.profit(self.monopoly).mean())

    @overload
    def collusion(self, profit: float) -> float: ...

    @overload
    def collusion(self, profit: Sequence[float] | Floats) -> Floats: ...

    def collusion(self, profit: ArrayLike) -> float | Floats:
        """Collusion index (profit - pi_B) / (pi_M - pi_B) of mean profit flows of a firm: 0 at Bertrand, 1 at the
        joint monopoly. Elementwise. ``ConfigError`` with one firm, where both are the same."""
        low, high = self.bounds
        if self.firms < 2:
            raise ConfigError("Market.collusion: quality names one firm; a collusion index needs at least two")
        if not high > low:
            raise ConfigError("Market.collusion: cost leaves no profit in float64, at Bertrand prices or as a monopoly")
        try:
            given = np.asarray(profit)
        except ValueError:
            given = np.asarray("")
        if given.dtype.kind not in "iuf":
            raise ConfigError(f"Market.collusion: profit must be numbers; got {profit!r}")
        found: float | Floats = (given[()] - low) / (high - low)
        return found


def bertrand(market: Market) -> Floats:
    """Prices p_i = c_i + mu / (1 - D_i) [N], by fixed point (damped by half, to 1e-14)."""
    of_type("bertrand", market=(market, Market))
    cost = np.asarray(market.cost)
    p = cost + market.mu
    for _ in range(_STEPS):
        new = cost + market.mu / (1 - market.demand(p))
        if np.abs(new - p).max() < _XTOL * np.abs(new).max():
            return np.asarray(new)
        p = (p + new) / 2
    raise ConfigError(f"bertrand: quality {market.quality} is too far above outside for a fixed point in float64")


def first_order(market: Market, prices: ArrayLike) -> Floats:
    """Residuals p_i - c_i - mu / (1 - D_i) [N] of the first-order conditions at ``prices`` [N]: all zero at the
    Bertrand prices."""
    p = _prices("first_order", market, prices)
    left = 1 - market.demand(p)
    if not left.all():
        raise ConfigError("first_order: prices give one firm the whole market in float64")
    return np.asarray(p - np.asarray(market.cost) - market.mu / left)


def monopoly(market: Market) -> Floats:
    """Prices c_j + M [N] with the one common mark-up M = mu + M sum_j D_j, by fixed point of M = mu / D_0, D_0 the
    outside share (damped on the log scale, to 1e-14)."""
    of_type("monopoly", market=(market, Market))
    cost, mark = np.asarray(market.cost), market.mu
    for _ in range(_STEPS):
        left = 1 - float(market.demand(cost + mark).sum())
        if left <= 0:
            break
        new = market.mu / left
        if abs(new - mark) < _XTOL * mark * 10:
            return np.asarray(cost + new)
        share = 1 / (1 + new / market.mu)  # Newton on log M - log mu + log D_0, whose slope is at most M / mu
        mark *= (new / mark) ** share
    raise ConfigError(f"monopoly: quality {market.quality} is too far above outside for a fixed point in float64")


def best_response(market: Market, firm: int, prices: ArrayLike) -> float:
    """The price of ``firm`` that maximises its profit while the others keep ``prices`` [N] (its own entry is
    ignored): root of p - c - mu / (1 - D), which rises in p, so that it is the only one."""
    p = _prices("best_response", market, prices).copy()
    i = index_in("best_response", "firm", firm, market.firms)

    def residual(own: float) -> float:
        return own - needed(own)

    def needed(own: float) -> float:
        p[i] = own
        left = 1 - float(market.demand(p)[i])
        if left <= 0:
            raise ConfigError(f"best_response: prices leave firm {i} the whole market in float64")
        return market.cost[i] + market.mu / left

    low = market.cost[i] + market.mu
    high = needed(low)
    return float(brentq(residual, low, high + 1e-12, xtol=1e-14))


@njit(cache=True)
def profit_flows(prices: Floats, quality: Floats, cost: Floats, outside: float, mu: float, out: Floats) -> None:
    """Writes pi [N] at ``prices`` [N] into ``out``: ``Market.profit`` for compiled loops."""
    top = outside
    for i in range(prices.size):
        top = max(top, quality[i] - prices[i])
    total = math.exp((outside - top) / mu)
    for i in range(prices.size):
        out[i] = math.exp((quality[i] - prices[i] - top) / mu)
        total += out[i]
    for i in range(prices.size):
        out[i] *= (prices[i] - cost[i]) / total


def _prices(where: str, market: Market, prices: ArrayLike) -> Floats:
    of_type(where, market=(market, Market))
    p = array(where, "prices", prices)
    if p.ndim == 0 or p.shape[-1] != market.firms:
        raise ConfigError(f"{where}: prices has shape {list(p.shape)} but its last axis must have {market.firms} firms")
    return p
