"""The sticky-price Cournot market: known equilibria, welfare in closed form, and the environment."""

from __future__ import annotations

import numpy as np
import pytest
import quantecon
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test
from scipy.linalg import solve_discrete_are

from stretto.games.lq.cournot import (
    ORACLES,
    Cournot,
    mistaken_gains,
    nash_gains,
    price_root,
    price_taking,
    static_cournot,
    steady_price,
    steady_quantities,
    welfare,
)
from stretto.games.lq.cournot_learning import cournot_least_squares
from stretto.games.lq.env import CournotMarket
from stretto.games.lq.market import Learners
from stretto.games.lq.outside import quantecon_nash
from stretto.games.lq.riccati import nash, nash_residual, riccati
from stretto.games.lq.scalar import firm_gain
from stretto.kernel.errors import ConfigError


@pytest.mark.parametrize("s", list(ORACLES))
def test_the_equilibrium_has_the_known_digits(s: float) -> None:
    model = Cournot(s=s)
    gains = nash_gains(model)
    found = (*gains[0], price_root(model, gains), steady_price(model, gains), steady_quantities(model, gains)[0])
    np.testing.assert_allclose(found, ORACLES[s], atol=6e-7)
    np.testing.assert_allclose(gains[0], gains[1], atol=1e-10)
    assert nash_residual(model.game(), nash(model.game())) < 1e-10
    assert nash(model.game()).ratio <= 0.12


@pytest.mark.parametrize("s", [0.1, 0.3, 0.5, 0.9, 1.0])
def test_quantecon_and_the_recursion_find_the_same_gains(s: float) -> None:
    m = Cournot(s=s)
    gains = nash_gains(m)
    np.testing.assert_allclose(riccati(m.game().face(gains[:, None], 0), "recursion").K[0], gains[0], atol=1e-9)
    np.testing.assert_allclose(np.vstack(quantecon_nash(m.game()).gains), gains, atol=1e-7)
    A, B = np.array([[1, 0], [s * 10, 1 - s]]), np.array([[0.0], [-s]])
    Q, M, W = 0.5 + s, s / 2, 0.5 * np.array([[2 - s * 10], [-(1 - s)]])
    zero = np.zeros((2, 2))
    F1, F2, _, _ = quantecon.nnash(A, B, B, zero, zero, Q, Q, 0.0, 0.0, W, W, M, M, beta=0.95)  # by hand
    np.testing.assert_allclose(np.vstack([F1, F2]), gains, atol=1e-7)


@pytest.mark.parametrize("firms", [1, 2, 3, 6])
def test_at_s_1_it_is_static_cournot(firms: int) -> None:
    model = Cournot(s=1.0, firms=firms)
    gains = nash_gains(model)
    np.testing.assert_allclose(steady_quantities(model, gains), static_cournot(model), atol=1e-9)
    assert static_cournot(model)[0] == pytest.approx(8 / ((firms + 1) + 1))
    np.testing.assert_allclose(gains[:, 1], 0, atol=1e-9)
    uneven = Cournot(s=1.0, firms=3, c=(1.0, 2.0, 3.0), k=(0.5, 1.0, 2.0))
    np.testing.assert_allclose(steady_quantities(uneven, nash_gains(uneven)), static_cournot(uneven), atol=1e-9)


def test_one_firm_is_a_riccati_equation_and_many_sell_more() -> None:
    one = Cournot(firms=1)
    g = np.sqrt(0.95)  # by hand: half of the cost that crosses p' with q stands in R and in the cross term
    A, B = g * np.array([[1, 0], [1, 0.9]]), g * np.array([[0.0], [-0.1]])
    R, cross = np.array([[0.6]]), np.array([[0.5], [-0.45]])
    P = solve_discrete_are(A, B, np.zeros((2, 2)), R, s=cross)
    by_hand = np.linalg.solve(R + B.T @ P @ B, B.T @ P @ A + cross.T)
    np.testing.assert_allclose(nash_gains(one), by_hand, atol=1e-10)
    np.testing.assert_allclose(nash_gains(Cournot(firms=1.0)), by_hand, atol=1e-10)
    outputs = [steady_quantities(Cournot(firms=n), nash_gains(Cournot(firms=n))).sum() for n in (1, 2, 4, 8)]
    assert outputs == sorted(outputs)


def test_a_mistaken_effect_has_an_equilibrium_of_its_own() -> None:
    for model in (Cournot(s=0.1), Cournot(s=0.9), Cournot(s=0.5, firms=3, c=(1.0, 2.0, 2.5))):
        np.testing.assert_allclose(mistaken_gains(model, 1.0), nash_gains(model), atol=1e-9)
    static = Cournot(s=1.0)  # each believes that the price falls by 2b: 2 b q + k q = p - c
    q = steady_quantities(static, mistaken_gains(static, 2.0))
    np.testing.assert_allclose(q, (10 - 2) / (2 + 1 + 2), atol=1e-9)


def test_price_takers() -> None:
    assert price_taking(Cournot()) == pytest.approx(14 / 3)
    with pytest.raises(ConfigError, match="price_taking: k"):
        price_taking(Cournot(k=0.0))


def test_welfare_at_the_equilibrium_has_the_known_digits() -> None:
    model = Cournot()
    flows = welfare(model, nash_gains(model))
    np.testing.assert_allclose(flows, [10.541693, 10.110935, 20.652628, 0.5], atol=6e-7)


@pytest.mark.parametrize("model", [Cournot(), Cournot(timing=1, k=3.0), Cournot(s=0.4, firms=3, c=(1.5, 2.0, 2.5))])
def test_welfare_is_what_a_long_run_earns(model: Cournot) -> None:
    gains = nash_gains(model)
    everyone = range(model.firms)
    learners = Learners(periods=(50,))
    run = cournot_least_squares(model, learners, 50_000, range(32), gains=gains, frozen=everyone)
    expected = welfare(model, gains)
    for measured, known in ((run.profit, expected.profit), (run.consumer, expected.consumer)):
        assert abs(measured.mean() - known) < 4 * measured.std(ddof=1) / np.sqrt(32) + 1e-3
    assert (run.gains == gains).all()


@given(
    st.floats(-5, 10), st.floats(-0.95, 0.999), st.floats(-5, -0.001), st.floats(0, 5), st.floats(0.01, 5),
    st.floats(0, 0.99), st.sampled_from([1, 2]),
)  # fmt: skip
@settings(max_examples=150)
def test_a_firms_closed_form_is_where_the_riccati_steps_go(a0, a1, bb, c, k, beta, timing) -> None:
    K0, K1, found = firm_gain(a0, a1, bb, c, k, beta, timing)
    own, free, seen = (k / 2 - bb, (c - a0) / 2, -a1 / 2) if timing == 2 else (k / 2, c / 2, -0.5)
    p01 = p11 = K0_there = K1_there = 0.0
    for _ in range(20_000):
        den = own + beta * bb * bb * p11
        if den <= 0:
            break
        g0, g1 = beta * bb * (p01 + p11 * a0) + free, beta * bb * p11 * a1 + seen
        K0_there, K1_there = g0 / den, g1 / den
        new = beta * (p01 * a1 + p11 * a0 * a1) - g0 * K1_there, beta * p11 * a1 * a1 - g1 * K1_there
        still = max(abs(new[0] - p01), abs(new[1] - p11)) < 1e-14 * max(1, abs(p01), abs(p11))
        p01, p11 = new
        if still:
            break
    if found and still:
        np.testing.assert_allclose([K0, K1], [K0_there, K1_there], rtol=1e-6, atol=1e-6)
    assert found == (den > 0) or not still


@pytest.mark.parametrize("timing", [1, 2])
@pytest.mark.parametrize("s", [0.1, 0.9])
def test_the_compiled_riccati_is_the_general_one(s: float, timing: int) -> None:
    model = Cournot(s=s, timing=timing, k=3.0)
    gains = nash_gains(model)
    a0 = s * 10 + s * gains[1, 0]
    a1 = 1 - s + s * gains[1, 1]
    K0, K1, found = firm_gain(a0, a1, -s, 2.0, 3.0, 0.95, timing)
    assert found
    np.testing.assert_allclose([K0, K1], gains[0], atol=1e-10)
    assert not firm_gain(a0, a1, -s, 2.0, -50.0, 0.95, timing)[2]
    assert not firm_gain(np.nan, a1, -s, 2.0, 3.0, 0.95, timing)[2]


def test_the_environment_speaks_pettingzoo() -> None:
    parallel_api_test(CournotMarket(Cournot(firms=3), published=True, horizon=20), num_cycles=50)


def test_the_environment_is_the_market_of_the_learners() -> None:
    model, steps = Cournot(s=0.3), 200
    gains = nash_gains(model)
    env = CournotMarket(model, published=True, horizon=steps)
    seen, _ = env.reset(seed=7)
    earned = np.zeros(2)
    while env.agents:
        q = model.quantities(gains, seen["firm_0"][0])
        seen, rewards, _, _, infos = env.step({f"firm_{i}": q[i : i + 1] for i in range(2)})
        earned += [rewards["firm_0"], rewards["firm_1"]]
        assert seen["firm_1"][1] == pytest.approx(q.sum())
        assert infos["firm_0"]["hhi"] == pytest.approx(0.5)
    run = cournot_least_squares(model, Learners(), steps, [7], gains=gains, frozen=(0, 1))
    assert seen["firm_0"][0] == pytest.approx(run.price[0], abs=1e-12)
    np.testing.assert_allclose(earned / steps, run.profits[0], rtol=1e-12)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Cournot(s=0.0), "Cournot: s = 0"),
        (lambda: Cournot(s=1.1), "Cournot: s = 1.1"),
        (lambda: Cournot(beta=1.0), "Cournot: beta = 1"),
        (lambda: Cournot(sigma=-0.1), "Cournot: sigma"),
        (lambda: Cournot(firms=0), "Cournot: firms"),
        (lambda: Cournot(s="0.1"), "Cournot: s"),
        (lambda: Cournot(timing=np.array([1, 2])), "Cournot: timing"),
        (lambda: Cournot().quantities(np.zeros((2, 2)), np.nan), "p = nan"),
        (lambda: Cournot().profits(5.0, np.ones(3), 5.0), "q has shape"),
        (lambda: welfare(Cournot(), np.zeros((2, 2))), "welfare: gains lead to no output"),
        (lambda: quantecon_nash(Cournot().game(), limit=1), "limit = 1"),
        (lambda: CournotMarket(Cournot()).reset(seed=-1), "reset: seed"),
        (lambda: Cournot(timing=3), "Cournot: timing = 3"),
        (lambda: Cournot(k=-1.0), "Cournot: k"),
        (lambda: Cournot(c=(1.0, 2.0, 3.0)), "Cournot: c has shape"),
        (lambda: Cournot(b=float("nan")), "Cournot: b"),
        (lambda: steady_price(Cournot(), [[0.0, 50.0], [0.0, 50.0]]), "steady_price: gains"),
        (lambda: welfare(Cournot(), [[0.0, 0.0]]), "welfare: gains has shape"),
        (lambda: mistaken_gains(Cournot(), 0.0), "mistaken_gains: share"),
        (lambda: CournotMarket(Cournot()).step({}), "call reset"),
        (lambda: CournotMarket(Cournot(), horizon=0), "horizon"),
        (lambda: _stepped({"firm_0": np.array([1.0])}), "no quantity of firm_1"),
        (lambda: _stepped({"firm_0": np.array([1.0]), "firm_1": np.array([9.0])}), "firm_1'] = 9"),
    ],
)
def test_bad_input_is_one_error(make, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def _stepped(actions: dict) -> None:
    env = CournotMarket(Cournot())
    env.reset(seed=0)
    env.step(actions)
