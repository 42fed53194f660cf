"""Cournot with sticky prices: firms choose quantities, the price moves a share s of the way to demand (Fershtman and
Kamien, Dynamic Duopolistic Competition with Sticky Prices).

p' = (1-s) p + s (a - b sum q) + sigma N(0,1). Firm i earns p' q - c q - (k/2) q^2 (``timing`` 2) or the same with p
(``timing`` 1, the price it saw). Policies q = -(K0 + K1 p), kept within [0, q_max] in a simulation. At s = 1 timing 2
is static Cournot. All constants are [inferred].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.games.lq.game import LQGame, from_own_costs
from stretto.games.lq.riccati import Equilibrium, nash
from stretto.games.lq.scalar import firm_gain
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number

ORACLES: dict[float, tuple[float, float, float, float, float]] = {
    0.1: (1.042836, -0.615446, 0.776911, 5.417415, 2.291292),
    0.5: (-0.969770, -0.194851, 0.305149, 5.800134, 2.099933),
    0.9: (-1.854055, -0.027003, 0.051395, 5.969506, 2.015247),
    1.0: (-2.0, 0.0, 0.0, 6.0, 2.0),
}
"""Stickiness s -> (K0, K1, root of the price, steady price, steady quantity) of two default firms, known digits."""


class Welfare(NamedTuple):
    """Expected flows per step at a steady linear policy: industry ``profit``, ``consumer`` surplus, their sum
    ``total``, and ``hhi``, the Herfindahl index of the mean quantities (1 / firms if all are alike)."""

    profit: float
    consumer: float
    total: float
    hhi: float


@dataclass(frozen=True)
class Cournot:
    """The market. ``a``, ``b``: demand is worth a - b Q; ``c``, ``k``: cost c q + (k/2) q^2, one number for all firms
    or one a firm; ``s`` in (0, 1]: small is sticky; ``beta``: discount; ``sigma``: noise of the price; ``q_max``: the
    largest quantity; ``timing``: 1 or 2. ``ConfigError`` on anything outside its range."""

    s: float = 0.1
    firms: int = 2
    timing: int = 2
    a: float = 10.0
    b: float = 1.0
    c: float | Sequence[float] = 2.0
    k: float | Sequence[float] = 1.0
    beta: float = 0.95
    sigma: float = 0.3
    q_max: float = 4.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "firms", int(number("Cournot", "firms", self.firms, 1, whole=True)))
        number("Cournot", "s", self.s, above=0, high=1)
        number("Cournot", "beta", self.beta, 0, below=1)
        for name in ("a", "b", "q_max"):
            number("Cournot", name, getattr(self, name), above=0)
        number("Cournot", "sigma", self.sigma, 0)
        if np.ndim(self.timing) or self.timing not in (1, 2):
            raise ConfigError(f"Cournot: timing = {self.timing} must be 1 (paid the price seen) or 2 (the next price)")
        for name in ("c", "k"):
            values = self._each(name)
            if (values < 0).any():
                raise ConfigError(f"Cournot: {name} = {getattr(self, name)} must be >= 0")
            object.__setattr__(self, name, tuple(values.tolist()))

    def _each(self, name: str) -> Floats:
        value = getattr(self, name)
        if np.ndim(value) == 0:
            return np.full(self.firms, number("Cournot", name, value))
        return array("Cournot", name, value, (self.firms,))

    @property
    def costs(self) -> tuple[Floats, Floats]:
        """The cost parameters (c, k) as arrays, each [firms]."""
        return np.array(self.c), np.array(self.k)

    def game(self) -> LQGame:
        """The market as a linear-quadratic game with state x = (1, p), whose costs are minus the profits."""
        A = np.array([[1.0, 0.0], [self.s * self.a, 1 - self.s]])
        B = [np.array([[0.0], [-self.s * self.b]])] * self.firms
        return from_own_costs(A, B, [self._own(*ck) for ck in zip(*self.costs, strict=True)], self.beta,
                              np.array([[0.0], [self.sigma]]))  # fmt: skip

    def _own(self, c: float, k: float) -> Floats:
        """-profit on (1, p, q, 1', p')."""
        cost = np.zeros((5, 5))
        cost[2, 2] = k / 2
        cost[0, 2] = cost[2, 0] = c / 2
        paid = 4 if self.timing == 2 else 1
        cost[paid, 2] = cost[2, paid] = -0.5
        return cost

    def profits(self, p: float, q: Floats, after: float) -> Floats:
        """Each firm's profit [firms] at price ``p``, quantities ``q`` [firms] and next price ``after``."""
        q, (c, k) = array("Cournot.profits", "q", q, (self.firms,)), self.costs
        paid = after if self.timing == 2 else p
        return np.asarray(paid * q - c * q - k / 2 * q * q)

    def quantities(self, gains: ArrayLike, p: float) -> Floats:
        """Quantities [firms] at price ``p`` under ``gains`` [firms, 2]: -(K0 + K1 p), kept within [0, q_max]."""
        K, p = array("Cournot.quantities", "gains", gains, (self.firms, 2)), number("Cournot.quantities", "p", p)
        return np.clip(-(K[:, 0] + K[:, 1] * p), 0, self.q_max)


def nash_gains(model: Cournot) -> Floats:
    """Gains (K0, K1) of each firm [firms, 2] at the Nash equilibrium, q = -(K0 + K1 p)."""
    return stacked(nash(model.game()))


def stacked(found: Equilibrium) -> Floats:
    """The players' gains of a market's equilibrium as one array [firms, 2] of (K0, K1)."""
    return np.vstack(found.gains)


def price_root(model: Cournot, gains: ArrayLike) -> float:
    """The factor 1 - s + s b sum_j K1_j by which the price's deviation from its mean shrinks a step under linear
    policies ``gains`` [firms, 2] (the price is an AR(1))."""
    K = array("price_root", "gains", gains, (model.firms, 2))
    return float(1 - model.s + model.s * model.b * K[:, 1].sum())


def steady_price(model: Cournot, gains: ArrayLike) -> float:
    """Mean price under linear policies ``gains`` [firms, 2]. ``ConfigError`` if the price has none (|root| >= 1)."""
    K = array("steady_price", "gains", gains, (model.firms, 2))
    root = price_root(model, K)
    if abs(root) >= 1:
        raise ConfigError(f"steady_price: gains make the price's root {root:.4g}; it must lie inside (-1, 1)")
    return float((model.s * model.a + model.s * model.b * K[:, 0].sum()) / (1 - root))


def steady_quantities(model: Cournot, gains: ArrayLike) -> Floats:
    """Mean quantity [firms] of each firm under linear policies ``gains`` [firms, 2], bounds on quantities ignored."""
    K = array("steady_quantities", "gains", gains, (model.firms, 2))
    return np.asarray(-(K[:, 0] + K[:, 1] * steady_price(model, K)))


def welfare(model: Cournot, gains: ArrayLike) -> Welfare:
    """Expected flows at the steady law of linear policies ``gains`` [firms, 2], bounds on quantities ignored: var p =
    sigma^2 / (1 - root^2), E[p' q] = mean p mean q - K1 root var p. Consumer surplus is a Q - b Q^2 / 2 minus what is
    paid."""
    K = array("welfare", "gains", gains, (model.firms, 2))
    root, price, q = price_root(model, K), steady_price(model, K), steady_quantities(model, K)
    var = model.sigma**2 / (1 - root**2)
    paid = price * q - K[:, 1] * var * (root if model.timing == 2 else 1.0)
    c, k = model.costs
    profit = float((paid - c * q - k / 2 * (q * q + K[:, 1] ** 2 * var)).sum())
    output, slope = q.sum(), K[:, 1].sum()
    if output == 0:
        raise ConfigError("welfare: gains lead to no output at all, so there are no shares of it")
    consumer = float(model.a * output - model.b / 2 * (output**2 + slope**2 * var) - paid.sum())
    return Welfare(profit, consumer, profit + consumer, float(((q / output) ** 2).sum()))


def mistaken_gains(model: Cournot, share: float) -> Floats:
    """Gains [firms, 2] at which no data corrects firms that believe in an effect of ``share`` times their true one on
    the price: with p' = a0 + a1 p + bb q and q = -(K0 + K1 p) always, any bb fits if a0 and a1 make up for it.
    ``share`` 1 is the Nash equilibrium; the number of firms: each takes what all do together for its own doing.
    ``ConfigError`` if damped best responses to such models don't settle."""
    share = number("mistaken_gains", "share", share, above=0)
    true, (c, k) = -model.s * model.b, model.costs
    K = np.tile([-1.0, 0.0], (model.firms, 1))
    for _ in range(20_000):
        moved = 0.0
        for i in range(model.firms):
            a0, a1 = -true * np.array([model.a / model.b + K[:, 0].sum(), (1 - model.s) / -true + K[:, 1].sum()])
            a0, a1 = a0 + share * true * K[i, 0], a1 + share * true * K[i, 1]
            K0, K1, found = firm_gain(a0, a1, share * true, c[i], k[i], model.beta, model.timing)
            if not found:
                raise ConfigError(f"mistaken_gains: share = {share:g} leads to a model without an optimal gain")
            step = 0.1 * (np.array([K0, K1]) - K[i])
            K[i] += step
            moved = max(moved, float(np.abs(step).max()))
        if moved < 1e-13:
            return K
    raise ConfigError(f"mistaken_gains: share = {share:g}: best responses haven't settled (last step {moved:.3g})")


def static_cournot(model: Cournot) -> Floats:
    """Quantities [firms] of the one-shot game in which the price is a - b Q at once: b Q + (b + k_i) q_i = a - c_i."""
    c, k = model.costs
    slopes = model.b * np.ones((model.firms,) * 2) + np.diag(model.b + k)
    return np.asarray(np.linalg.solve(slopes, model.a - c), np.float64)


def price_taking(model: Cournot) -> float:
    """The price if every firm supplied where price = marginal cost, c + k q; needs k > 0."""
    c, k = model.costs
    if (k <= 0).any():
        raise ConfigError("price_taking: k must be above 0: with constant marginal cost supply has no slope")
    return float((model.a + model.b * (c / k).sum()) / (1 + model.b * (1 / k).sum()))
