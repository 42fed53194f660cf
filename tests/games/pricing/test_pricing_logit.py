"""Logit prices against the published digits, two routes each, and bad input."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar, root

from stretto.games.pricing.logit import (
    Market,
    bertrand,
    best_response,
    first_order,
    monopoly,
    profit_flows,
)
from stretto.kernel.errors import ConfigError

DUOPOLY = Market()
UNEVEN = Market((2.0, 2.5, 1.8), (1.0, 1.2, 0.9), 0.1, 0.3)


def bertrand_root(market: Market) -> np.ndarray:
    """The Bertrand prices [N] by an independent route: a root of the first-order conditions
    (``scipy.optimize.root``)."""
    found = root(lambda p: first_order(market, p), bertrand(market) + market.mu / 10, tol=1e-13)
    return np.asarray(found.x)


def monopoly_root(market: Market) -> np.ndarray:
    """The monopoly prices [N] by an independent route: M as the bracketed root of M D_0 - mu
    (``scipy.optimize.brentq``)."""
    cost = np.asarray(market.cost)

    def residual(mark: float) -> float:
        return mark * (1 - float(market.demand(cost + mark).sum())) - market.mu

    high = 2 * market.mu
    while residual(high) < 0:
        high *= 2
    return np.asarray(cost + brentq(residual, market.mu, high, xtol=1e-15))


def test_published_prices_and_profits() -> None:
    assert DUOPOLY.bertrand == pytest.approx([1.472927] * 2, abs=1e-6)
    assert DUOPOLY.bounds[0] == pytest.approx(0.222927, abs=1e-6)
    assert DUOPOLY.monopoly == pytest.approx([1.924981] * 2, abs=1e-6)
    assert DUOPOLY.bounds[1] == pytest.approx(0.337490, abs=1e-6)


def test_the_collusion_index_is_zero_at_bertrand_one_at_monopoly_and_concave_between() -> None:
    index = [DUOPOLY.collusion(DUOPOLY.profit([p, p]).mean()) for p in (1.5, 1.6, 1.7, 1.8)]
    assert index == pytest.approx([0.098012, 0.432647, 0.709327, 0.905115], abs=1e-6)
    assert DUOPOLY.collusion(DUOPOLY.bounds[0]) == pytest.approx(0, abs=1e-12)
    assert DUOPOLY.collusion(DUOPOLY.bounds[1]) == pytest.approx(1, abs=1e-12)
    path = np.linspace(1.5, 1.9, 41)
    assert (np.diff(DUOPOLY.profit(np.stack([path, path], 1)).mean(1), 2) < 0).all()


@pytest.mark.parametrize("market", [DUOPOLY, UNEVEN, Market((2.0,) * 5, (1.0,) * 5)])
def test_fixed_point_and_root_agree(market: Market) -> None:
    assert bertrand(market) == pytest.approx(bertrand_root(market), abs=1e-10)
    assert np.abs(first_order(market, market.bertrand)).max() < 1e-10
    assert monopoly(market) == pytest.approx(monopoly_root(market), abs=1e-10)


def test_monopoly_is_the_largest_joint_profit() -> None:
    rng = np.random.default_rng(0)
    best = UNEVEN.profit(UNEVEN.monopoly).sum()
    near = UNEVEN.monopoly + rng.normal(0, 0.05, (200, 3))
    assert (UNEVEN.profit(near).sum(1) < best).all()


@pytest.mark.parametrize("firm", [0, 1, 2])
def test_the_best_response_is_the_largest_own_profit(firm: int) -> None:
    others = np.array([1.7, 1.9, 1.5])

    def loss(p: float) -> float:
        mine = others.copy()
        mine[firm] = p
        return -float(UNEVEN.profit(mine)[firm])

    found = minimize_scalar(loss, bounds=(1.0, 3.0), method="bounded", options={"xatol": 1e-9})
    assert best_response(UNEVEN, firm, others) == pytest.approx(found.x, abs=1e-6)
    assert best_response(UNEVEN, firm, UNEVEN.bertrand) == pytest.approx(UNEVEN.bertrand[firm], abs=1e-12)


def test_compiled_profits_are_the_same() -> None:
    prices, out = np.array([1.4, 1.9, 2.2]), np.empty(3)
    profit_flows(prices, np.array(UNEVEN.quality), np.array(UNEVEN.cost), UNEVEN.outside, UNEVEN.mu, out)
    assert out == pytest.approx(UNEVEN.profit(prices), rel=1e-13)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Market(mu=0), r"Market: mu = 0 "),
        (lambda: Market((2.0,), (1.0, 1.0)), r"Market: cost has shape"),
        (lambda: Market((), ()), r"Market: quality"),
        (lambda: Market((np.nan, 2.0)), r"Market: quality"),
        (lambda: DUOPOLY.profit([1.0, 2.0, 3.0]), r"profit: prices has shape"),
        (lambda: best_response(DUOPOLY, 2, [1.5, 1.5]), r"best_response: firm = 2"),
        (lambda: DUOPOLY.demand([1.5, -1e308]), r"demand: prices"),
        (lambda: first_order(DUOPOLY, [-1e5, 1.5]), r"first_order: prices"),
        (lambda: bertrand(None), r"bertrand: market must be of type Market"),  # type: ignore[arg-type]
        (lambda: best_response(DUOPOLY, 0, [1.5, np.nan]), r"best_response: prices"),
        (lambda: DUOPOLY.collusion("a"), r"collusion: profit"),
        (lambda: Market((2.0, 2.0), (1e5, 1e5)).collusion(0.3), r"collusion: cost"),
        (lambda: Market((2.0,), (1.0,)).collusion(0.3), r"collusion: quality"),
    ],
)
def test_bad_input_names_the_argument(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()  # type: ignore[operator]
