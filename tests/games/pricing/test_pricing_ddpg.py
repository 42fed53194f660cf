"""DDPG sellers: the compiled loop against PyTorch's autograd and Adam, a smoke run, the detector, the diagram."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.games.pricing.ddpg import DDPG, train, train_until_stable
from stretto.games.pricing.ddpg_reference import train_reference
from stretto.games.pricing.detector import detect, divergences, largest_flow
from stretto.games.pricing.engine import Clocks, Engine
from stretto.games.pricing.logit import Market
from stretto.games.pricing.networks import evaluate, he, layers
from stretto.games.pricing.phase import Cell, ddpg_cell, diagram, tabular_cell
from stretto.games.pricing.tabular import QLearning
from stretto.games.pricing.traces import mutual_information, regress, shock, signalling
from stretto.kernel.errors import ConfigError

MARKET = Market()
SMALL = DDPG(moves=240, warm=160, actor_lr=1e-3, soft=0.05)


@pytest.mark.parametrize(
    ("clocks", "twin"),
    [pytest.param(Clocks(rho=0.05), False, marks=pytest.mark.slow), (Clocks(rho=0.05, delay=1.3, labels=(1, 0)), True),
     pytest.param(Clocks(rho=0.05, synchronous=True), False, marks=pytest.mark.slow)],
)  # fmt: skip
def test_the_compiled_loop_is_ddpg_in_pytorch(clocks: Clocks, twin: bool) -> None:
    learner = DDPG(moves=200, warm=160, actor_lr=1e-3, soft=0.05, twin=twin)
    done = train(MARKET, clocks, [3], learner)
    trace, firms = train_reference(MARKET, clocks, 3, learner)
    assert done.trace[0] == pytest.approx(trace, abs=2e-4)
    assert done.said[0, -1, 2] > 0  # the last move came with an update
    for i in range(2):
        parts = [p.detach().numpy() for p in firms[i].actor.parameters()]
        mine = layers(done.actors[0, i], 2, 64)
        for a, b in zip(mine, parts, strict=True):
            assert a == pytest.approx(b.T if b.shape[0] > 1 else b[0], abs=2e-3)


def test_runs_depend_on_their_seed_alone() -> None:
    one = train(MARKET, Clocks(delay=1.0), [5, 6, 7], SMALL)
    other = train(MARKET, Clocks(delay=1.0), [7, 5], SMALL)
    assert (one.actors[[2, 0]] == other.actors).all()
    assert (one.trace[[2, 0]] == other.trace).all()


def test_swapping_the_firms_swaps_everything() -> None:
    one = train(Market((2.0, 2.3), (1.0, 0.9)), Clocks(), [2], SMALL)
    other = train(Market((2.3, 2.0), (0.9, 1.0)), Clocks(labels=(1, 0)), [2], SMALL)
    assert (one.movers == 1 - other.movers).all()
    assert one.trace == pytest.approx(other.trace, abs=1e-4)
    assert one.profit[:, ::-1] == pytest.approx(other.profit, abs=1e-4)


def test_time_rescaling_leaves_learning_unchanged() -> None:
    one = train(MARKET, Clocks(1.0, 0.8, 0.05), [1], SMALL)
    other = train(MARKET, Clocks(4.0, 0.2, 0.2), [1], SMALL)
    assert (one.trace[0, :, 1:] == other.trace[0, :, 1:]).all()
    assert one.delta == pytest.approx(other.delta, rel=1e-9)


@pytest.mark.parametrize("clocks", [Clocks(rho=0.05), Clocks(rho=0.05, synchronous=True)])
def test_profits_and_prices_are_averages_over_the_last_fifth(clocks: Clocks) -> None:
    done = train(MARKET, clocks, [4], SMALL)
    start = SMALL.moves * 4 // 5
    prices, profit, paid, since, last = np.full(2, 1.7), np.zeros(2), np.zeros(2), 0.0, 0.0
    for k in range(SMALL.moves):
        t, own, _, price = done.trace[0, k]
        i = done.movers[0, k]
        if k >= start:
            profit += (t - last) * MARKET.profit(prices)
            paid += (t - last) * prices
        if k == start - 1:
            since = t
        assert own == prices[i]
        prices[i], last = price, t
    assert done.profit[0] == pytest.approx(profit / (last - since), rel=1e-9)
    assert done.price[0] == pytest.approx(paid / (last - since), rel=1e-9)


def test_smoke_run_of_two_seeds_and_1500_moves() -> None:
    done = train(MARKET, Clocks(rho=0.05), [0, 1], DDPG(moves=1500))
    assert np.isfinite(done.delta).all()
    assert done.delta_mid == pytest.approx(0.709327, abs=1e-6)
    assert done.delta == pytest.approx(0.709, abs=0.2)  # short training: mostly the untrained actor
    assert (done.drift() < 0.1).all()
    assert divergences(done) == [None, None]
    grid = np.linspace(1.43, 1.97, 5)
    maps = done.price_map(grid)
    assert done.greedy(1, 0)(np.array([grid[2], grid[4]])) == pytest.approx(maps[1, 0, 2, 4], abs=1e-6)


def test_fresh_actors_sit_at_the_midpoint() -> None:
    done = train(MARKET, Clocks(), [0, 1], DDPG(box=(1.0, 2.0), moves=100, warm=100))
    assert done.delta_mid == pytest.approx(0.098012, abs=1e-6)
    assert done.price_map(np.linspace(1, 2, 5)) == pytest.approx(np.full((2, 2, 5, 5), 1.5), abs=0.03)


def test_the_budget_doubles_until_the_map_is_stable() -> None:
    still = train_until_stable(MARKET, Clocks(), [0], DDPG(moves=200, warm=100, actor_lr=0.0), 800)
    assert still.learner.moves == 200
    moving = train_until_stable(MARKET, Clocks(), [0], DDPG(moves=200, warm=100, actor_lr=1e-3), 800, 1e-6)
    assert moving.learner.moves == 800


def test_evaluate_is_the_network() -> None:
    theta = he(np.uint64(5), 2, 8, 1.0)
    w1, b1, w2, b2, w3, b3 = layers(theta, 2, 8)
    x = np.array([[0.3, -0.7]], np.float32)
    expected = np.maximum(np.maximum(x @ w1 + b1, 0) @ w2 + b2, 0) @ w3 + b3[0]
    assert evaluate(theta, x) == pytest.approx(expected, rel=1e-5)


def test_the_detector_finds_values_targets_and_losses() -> None:
    limit = 2 * largest_flow(MARKET, (1.43, 1.97))
    assert limit == pytest.approx(3.5674, abs=1e-3)
    calm = np.abs(np.random.default_rng(0).normal(0.5, 0.1, (4000, 3)))
    assert detect(calm, limit) is None
    for column, kind in ((0, "value"), (1, "target")):
        said = calm.copy()
        said[2345, column] = 4.0
        found = detect(said, limit)
        assert found is not None
        assert (found.move, found.kind) == (2345, kind)
    said = calm.copy()
    said[3000:, 2] *= 100
    found = detect(said, limit)
    assert found is not None
    assert found.kind == "loss"
    assert 3000 < found.move <= 3100
    said[10, 1] = np.nan
    first = detect(said, limit)
    assert first is not None
    assert first.move == 10


def test_without_target_networks_and_with_large_steps_the_cell_is_invalid() -> None:
    wild = DDPG(moves=3000, actor_lr=1e-2, critic_lr=0.1, soft=1.0)
    done = train(MARKET, Clocks(5.0, 1.0, 0.01), [0], wild)
    assert divergences(done)[0] is not None
    cell = ddpg_cell(MARKET, Clocks(5.0, 1.0, 0.01), [0], wild)
    assert cell.invalid == 1
    assert np.isnan(cell.index)


def test_a_run_that_ran_away_is_stopped_and_has_no_index() -> None:
    wild = DDPG(moves=3000, actor_lr=0.0, critic_lr=1e4, soft=1.0)
    done = train(MARKET, Clocks(rho=0.01), [0], wild)
    assert done.ended[0] > 0
    assert np.isnan(done.delta[0])
    assert divergences(done)[0] is not None


def test_the_diagram_runs_each_cell_once() -> None:
    quick = QLearning(stable=2000, decay=1e-3, limit=20_000, evaluate=100.0)
    met: list[tuple[float, float]] = []

    def cell(clocks: Clocks) -> Cell:
        met.append((clocks.rate, clocks.delay))
        return tabular_cell(MARKET, clocks, [0, 1], quick)

    cells = diagram([1.0, 2.0], [0.0, 1.0, 2.0], cell)
    assert met == [(r, d) for r in (1.0, 2.0) for d in (0.0, 1.0, 2.0)]
    assert all(-1 < c.index < 1 for row in cells for c in row)


def test_regression_and_mutual_information_of_known_laws() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=20_000)
    y = 0.6 * x + 0.8 * rng.normal(size=x.size)
    slope, fit = regress(y, x)
    assert (slope, fit) == (pytest.approx(0.6, abs=0.02), pytest.approx(0.36, abs=0.02))
    # binning loses a little of -log(1 - r^2) / 2 = .223
    assert 0.17 < mutual_information(y, x) < 0.2232
    assert mutual_information(rng.permutation(y), x) == pytest.approx(0, abs=3e-3)
    assert mutual_information((x > np.median(x)).astype(float), x, 2) == pytest.approx(np.log(2), abs=1e-3)
    assert mutual_information(np.full(50, 1.5), x[:50]) == pytest.approx(0, abs=1e-12)
    assert regress(np.full(50, 1.5), x[:50]) == (0.0, 0.0)


def test_signalling_finds_the_lag() -> None:
    rng = np.random.default_rng(2)
    seen = rng.normal(size=3000)
    own = np.roll(seen, 3) + 0.1 * rng.normal(size=3000)  # answers what it saw three events before
    signal = signalling(own, seen)
    assert int(signal.information.argmax()) == 2  # lags start at 1
    assert signal.information[2] > 1
    assert np.delete(signal.information, 2) == pytest.approx(np.zeros(9), abs=0.05)
    assert signal.slope == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize("clocks", [Clocks(), Clocks(2.0, 1.0), Clocks(synchronous=True)])
def test_a_shock_lasts_one_event_and_recovery_is_what_the_policy_does(clocks: Clocks) -> None:
    low = float(MARKET.bertrand[1])
    stubborn, trace, at = shock(MARKET, clocks, [lambda s: 1.8, lambda s: 1.8], [1.8, 1.8])
    assert stubborn == pytest.approx(1)
    assert trace.set[at] == low
    assert trace.mover[at] == 1
    assert (trace.set[trace.own(1)] == low).sum() == 1
    assert trace.own(1)[trace.own(1) > at].size == 20
    lost, _, _ = shock(MARKET, clocks, [lambda s: float(s[0]), lambda s: float(s[0])], [1.8, 1.8])
    assert lost == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: DDPG(box=(2.0, 1.0)), r"DDPG: box\[1\]"),
        (lambda: DDPG(critic_lr=-1.0), "DDPG: critic_lr"),
        (lambda: DDPG(soft=0.0), "DDPG: soft"),
        (lambda: DDPG(noise=(0.1, 0.2)), r"DDPG: noise\[1\]"),
        (lambda: DDPG(moves=1005), "DDPG: moves"),
        (lambda: DDPG(replay=10), "DDPG: replay"),
        (lambda: train(Market((2.0,) * 3, (1.0,) * 3), Clocks(), [0]), "train: market has 3"),
        (lambda: train(MARKET, Clocks(), [-1]), "train: seeds"),
        (lambda: train_until_stable(MARKET, Clocks(), [0], SMALL, 10), "train_until_stable: limit"),
        (lambda: DDPG(hidden=10**30), "DDPG: hidden"),
        (lambda: DDPG(twin=2), "DDPG: twin"),  # type: ignore[arg-type]
        (lambda: DDPG(box=(-1e308, 1e308)), r"DDPG: box\[0\]"),
        (lambda: train(Market((2.0, 2.0), (1e5, 1e5)), Clocks(), [0]), "collusion: cost"),
        (lambda: train(MARKET, Clocks(), [0], QLearning()), "train: learner"),  # type: ignore[arg-type]
        (lambda: train_reference(Market((2.0,) * 3, (1.0,) * 3), Clocks(), 0, SMALL), "train_reference: market has 3"),
        (lambda: largest_flow(MARKET, (2.0, 1.0)), r"largest_flow: box\[1\]"),
        (lambda: detect([1.0, 2.0, 3.0], 1.0), "detect: said"),
        (lambda: diagram([1.0], [0.0], None), "diagram: cell"),  # type: ignore[arg-type]
        (lambda: mutual_information([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 10**9), "mutual_information: bins"),
        (lambda: signalling(np.arange(30.0), np.arange(30.0), []), "signalling: lags"),
        (lambda: signalling(np.arange(30.0), np.arange(30.0), [1.5]), "signalling: lags"),  # type: ignore[list-item]
        (lambda: shock(Market((2.0,), (1.0,)), Clocks(), [lambda s: 1.5], [1.5]), "shock: market has 1"),
        (lambda: detect(np.ones((5, 3)), 0.0), "detect: limit"),
        (lambda: diagram([], [0.0], lambda c: Cell(c, np.zeros(1), np.zeros(1))), "diagram: rates"),
        (lambda: mutual_information([1.0, 2.0], [1.0, 2.0]), "mutual_information: own"),
        (lambda: regress([1.0, 2.0, 3.0], [1.0, 2.0]), "regress: rival"),
        (lambda: signalling(np.arange(8.0), np.arange(8.0)), "signalling: lags"),
        (lambda: shock(MARKET, Clocks(), [lambda s: 1.5] * 2, [1.5, 1.5], settle=0), "shock: settle"),
        (lambda: Engine(MARKET, Clocks(), [1.5, np.nan]), "Engine: prices"),
    ],
)
def test_bad_input_names_the_argument(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()  # type: ignore[operator]
