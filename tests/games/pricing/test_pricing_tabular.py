"""Q-learning sellers: the kernel against plain Python, its symmetries, and the exact deviation check."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numba
import numpy as np
import pytest

from stretto.games.pricing.deviation import deviation, to_grid
from stretto.games.pricing.engine import Clocks, Engine
from stretto.games.pricing.logit import Market, best_response
from stretto.games.pricing.tabular import QLearning, first_values, learn, price_grid, profit_table
from stretto.games.pricing.tabular_reference import learn_reference
from stretto.kernel.errors import ConfigError

MARKET = Market()
SHORT = QLearning(limit=2000, evaluate=50.0)
LINES = [
    Clocks(), Clocks(synchronous=True), Clocks(delay=1.3), Clocks(delay=2.0, synchronous=True),
    Clocks(5.0, 1.0, labels=(1, 0)),
]  # fmt: skip


def test_the_grid_and_first_values() -> None:
    grid = price_grid(MARKET)
    assert (grid[0], grid[-1], grid.size) == (pytest.approx(1.427721, abs=1e-6), pytest.approx(1.970186, abs=1e-6), 15)
    q = first_values(profit_table(MARKET, grid))
    against = [MARKET.profit([grid[3], p])[0] for p in grid]
    assert q[0, 2, 5, 3] == pytest.approx(np.mean(against), rel=1e-12)
    assert q[1] == pytest.approx(q[0], rel=1e-12)


@pytest.mark.parametrize("clocks", LINES)
def test_the_kernel_is_the_reference_bit_for_bit(clocks: Clocks) -> None:
    done = learn(MARKET, clocks, [3, 11], SHORT)
    for s, seed in enumerate((3, 11)):
        q, _, moves = learn_reference(MARKET, clocks, seed, SHORT)
        assert (done.values[s] == q).all()
        assert done.moves[s] == moves
        assert (done.policy[s] == q.argmax(-1)).all()


def test_runs_depend_on_their_seed_alone() -> None:
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    one = learn(MARKET, Clocks(delay=1.0), [5, 6, 7], SHORT)
    numba.set_num_threads(before)
    other = learn(MARKET, Clocks(delay=1.0), [7, 5], SHORT)
    assert (one.values[[2, 0]] == other.values).all()
    assert (one.profit[[2, 0]] == other.profit).all()


def test_time_rescaling_leaves_learning_unchanged() -> None:
    base = Clocks(1.0, 0.8)
    scaled = replace(base, rate=4.0, delay=0.2, rho=4 * base.rho)  # a power of two: exact
    one = learn(MARKET, base, [1], SHORT)
    other = learn(MARKET, scaled, [1], replace(SHORT, evaluate=SHORT.evaluate / 4))
    assert (one.values == other.values).all()
    assert one.profit == pytest.approx(other.profit, rel=1e-12)


@pytest.mark.parametrize("synchronous", [False, True])
def test_swapping_the_firms_swaps_everything(synchronous: bool) -> None:
    one, other = Market((2.0, 2.3), (1.0, 0.9)), Market((2.3, 2.0), (0.9, 1.0))
    grid = price_grid(one)
    clocks = Clocks(delay=0.5, synchronous=synchronous)
    first = learn(one, clocks, [2], SHORT, grid)
    second = learn(other, replace(clocks, labels=(1, 0)), [2], SHORT, grid)
    assert first.values[:, ::-1] == pytest.approx(second.values, abs=1e-12)
    assert (first.policy[:, ::-1] == second.policy).all()


def test_it_stops_when_the_policy_is_calm_and_then_plays_it() -> None:
    done = learn(MARKET, Clocks(), [0, 1], QLearning(stable=3000, decay=1e-3, limit=400_000, evaluate=500.0))
    assert done.settled.all()
    assert (done.moves < 400_000).all()
    inside = (done.price >= done.grid[0]) & (done.price <= done.grid[-1])
    assert inside.all()


def test_the_averages_are_those_of_greedy_play() -> None:
    """In step, greedy play ends in a cycle; replayed by hand from its last prices it earns what was reported."""
    done = learn(MARKET, Clocks(synchronous=True), [0, 1], QLearning(decay=1e-3, limit=20_000, evaluate=20_000.0))
    for s in range(2):
        now, profit, paid = tuple(int(x) for x in done.last[s]), np.zeros(2), np.zeros(2)
        for _ in range(2000):
            prices = done.grid[list(now)]
            profit, paid = profit + MARKET.profit(prices) / 2000, paid + prices / 2000
            now = int(done.policy[s, 0][now]), int(done.policy[s, 1][now[::-1]])
        assert done.profit[s] == pytest.approx(profit, abs=2e-3)
        assert done.price[s] == pytest.approx(paid, abs=4e-3)


def _play(clocks: Clocks, grid: np.ndarray, phi: np.ndarray, firm: int, start: list[int], runs: int) -> float:
    """Mean discounted normalised flow of ``firm`` from just after an event at prices ``start``."""
    total = []
    number = {float(p): k for k, p in enumerate(grid)}
    for seed in range(runs):
        engine = Engine(MARKET, clocks, grid[start], seed)
        value, t = 0.0, 0.0
        while t < 8 / clocks.rho:
            profit = engine.profit[firm]
            turn = engine.advance()
            value += (math.exp(-clocks.rho * t) - math.exp(-clocks.rho * turn.time)) * profit
            t = turn.time
            for i, seen in zip(turn.movers, turn.seen, strict=True):
                engine.set(i, grid[phi[i, number[seen[0]], number[seen[1]]]])
        total.append(value)
    return float(np.mean(total))


@pytest.mark.parametrize("synchronous", [False, True])
def test_the_exact_value_is_what_play_earns(synchronous: bool) -> None:
    clocks = Clocks(1.0, rho=0.4, synchronous=synchronous)
    grid = np.linspace(1.45, 1.95, 6)
    # both always climb by one and fall back from the top: play cycles through the diagonal
    phi = np.minimum(np.indices((6, 6)).max(0) + 1, 5)
    phi[5, :] = 0
    phi = np.stack([phi, phi])
    # from each start the value that the check weighs; one start is enough for the solver
    from stretto.games.pricing.deviation import _solve

    flow = profit_table(MARKET, grid)[0]
    exact = _solve(flow, phi[0], phi[1].T, clocks)[1, 3]
    runs = 1 if synchronous else 400
    assert _play(clocks, grid, phi, 0, [1, 3], runs) == pytest.approx(exact, abs=1e-3 if synchronous else 6e-3)


def test_no_firm_gains_by_leaving_bertrand_when_the_rival_never_reacts() -> None:
    grid = np.unique(np.append(np.linspace(1.43, 1.97, 40), MARKET.bertrand[0]))
    at = int(np.argmin(np.abs(grid - MARKET.bertrand[0])))
    constant = np.full((2, 41, 41), at)
    gains, values = deviation(MARKET, Clocks(), grid, constant, [at, at])
    assert gains == pytest.approx([0, 0], abs=1e-9)
    assert values == pytest.approx([MARKET.bounds[0]] * 2, abs=1e-9)


@pytest.mark.parametrize("synchronous", [False, True])
def test_undercutting_a_rival_who_never_reacts_gains_the_best_response(synchronous: bool) -> None:
    grid = np.linspace(1.43, 1.97, 41)
    at = int(to_grid(grid, [1.8])[0])
    constant = np.full((2, 41, 41), at)
    clocks = Clocks(1.0, rho=0.05, synchronous=synchronous)
    gains, _ = deviation(MARKET, clocks, grid, constant, [at, at])
    reply = grid[to_grid(grid, [best_response(MARKET, 0, [0, grid[at]])])[0]]
    low, high = MARKET.bounds
    flow = (MARKET.profit([reply, grid[at]])[0] - MARKET.profit([grid[at]] * 2)[0]) / (high - low)
    # it earns nothing more until its next own event, then the whole difference
    wait = math.exp(-0.05) if synchronous else (1 / 1.05)
    assert gains == pytest.approx([flow * wait] * 2, abs=1e-8)


def test_grim_punishment_deters_at_low_discounting_only() -> None:
    grid = np.array([MARKET.bertrand[0], 1.6, 1.8])
    grim = np.zeros((3, 3), np.int64)
    grim[2, 2] = 2  # both high: stay; else Bertrand
    policies = np.stack([grim, grim])
    patient, _ = deviation(MARKET, Clocks(rho=0.05, synchronous=True), grid, policies, [2, 2])
    hasty, _ = deviation(MARKET, Clocks(rho=5.0, synchronous=True), grid, policies, [2, 2])
    assert patient == pytest.approx([0, 0], abs=1e-9)
    assert (hasty > 1e-3).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: QLearning(step=0), "QLearning: step"),
        (lambda: QLearning(stable=0), "QLearning: stable"),
        (lambda: learn(MARKET, Clocks(), []), "learn: seeds"),
        (lambda: learn(MARKET, Clocks(), [1, 1]), "learn: seeds"),
        (lambda: learn(MARKET, Clocks(), [0], grid=[1.5, 1.4]), "learn: grid"),
        (lambda: learn(Market((2.0,) * 3, (1.0,) * 3), Clocks(), [0]), "profit_table: market has 3"),
        (lambda: QLearning(stable=10**30), "QLearning: stable"),
        (lambda: learn(MARKET, Clocks(rate=1e9), [0]), "learn: evaluate"),
        (lambda: learn(MARKET, Clocks(), [0], "Q"), "learn: learner"),  # type: ignore[arg-type]
        (lambda: learn_reference(MARKET, Clocks(), 0, SHORT, [1.6, 1.5]), "learn_reference: grid"),
        (lambda: price_grid(Market((2.0,), (1.0,))), "price_grid: market"),
        (lambda: to_grid([1.6, 1.5], [1.5]), "to_grid: grid"),
        (lambda: deviation(MARKET, Clocks(), [1.5, 1.6], np.zeros((2, 2, 2), int), [0, 2]), "deviation: start"),
        (lambda: deviation(MARKET, Clocks(), [1.5, 1.6], np.zeros((2, 2, 2), int), [0]), "deviation: start"),
        (lambda: deviation(MARKET, Clocks(), [1.6, 1.5], np.zeros((2, 2, 2), int), [0, 0]), "deviation: grid"),
        (lambda: deviation(MARKET, Clocks(rho=1e-9), [1.5], np.zeros((2, 1, 1), int), [0, 0]), "deviation: clocks"),
        (lambda: price_grid(MARKET, 1), "price_grid: prices"),
        (lambda: deviation(MARKET, Clocks(delay=1.0), [1.5, 1.6], np.zeros((2, 2, 2), int), [0, 0]), "delay = 1.0"),
        (lambda: deviation(MARKET, Clocks(), [1.5, 1.6], np.full((2, 2, 2), 2), [0, 0]), "deviation: policies"),
        (lambda: deviation(MARKET, Clocks(), [1.5, 1.6], np.zeros((2, 3, 3), int), [0, 0]), "deviation: policies"),
    ],
)
def test_bad_input_names_the_argument(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()  # type: ignore[operator]


@pytest.mark.slow
def test_latency_lowers_collusion_and_asynchrony_alone_does_not() -> None:
    lines = [Clocks(synchronous=True), Clocks(), Clocks(delay=2.0)]
    index = [float(MARKET.collusion(learn(MARKET, c, range(16)).profit.mean())) for c in lines]
    assert abs(index[1] - index[0]) < 0.12
    assert all(a > b for a, b in pairwise(index[1:]))
