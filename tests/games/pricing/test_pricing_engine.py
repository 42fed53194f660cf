"""The continuous-time engine: exact rewards, latency, merged clocks, and its two symmetries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from pettingzoo.test import api_test

from stretto.games.pricing.clockwork import capacity, latest, push, start
from stretto.games.pricing.engine import Clocks, Engine, play
from stretto.games.pricing.logit import Market
from stretto.games.pricing.zoo import PricingEnv
from stretto.kernel.errors import ConfigError
from stretto.tabular import counter
from stretto.tabular.delay import DelayLine, Delays

MARKET = Market()


def rule(firm: int):  # type: ignore[no-untyped-def]
    """A policy that depends on both prices."""
    return lambda seen: 1.5 + 0.1 * firm + 0.3 * np.sin(20 * (seen[0] + 2 * seen[1])) ** 2


def turns(clocks: Clocks, moves: int, market: Market = MARKET, seed: int = 3):  # type: ignore[no-untyped-def]
    """(time, mover, seen, price, reward, factor) of each move."""
    engine, out = Engine(market, clocks, [1.5, 1.8], seed), []
    while len(out) < moves:
        turn = engine.advance()
        for j, i in enumerate(turn.movers):
            price = rule(0)(turn.seen[j])
            engine.set(i, price)
            out.append((turn.time, i, *turn.seen[j], price, turn.rewards[j], turn.factors[j]))
    return np.array(out)


@pytest.mark.parametrize("clocks", [Clocks(2.0, 0.7), Clocks(1.0, 1.0, synchronous=True)])
def test_observations_are_what_a_search_through_history_finds(clocks: Clocks) -> None:
    engine = Engine(MARKET, clocks, [1.5, 1.8], 1)
    trace = play(engine, [rule(0), rule(1)], 400)
    for k in range(trace.time.size):
        rival = 1 - trace.mover[k]
        set_before = np.flatnonzero((trace.mover == rival) & (trace.time + clocks.delay <= trace.time[k]))
        expected = trace.set[set_before[-1]] if set_before.size else [1.5, 1.8][rival]
        assert trace.seen[k, 1] == expected


def test_without_latency_the_live_price_is_seen() -> None:
    trace = play(Engine(MARKET, Clocks(), [1.5, 1.8], 2), [rule(0), rule(1)], 300)
    before = np.vstack([[1.5, 1.8], trace.prices[:-1]])
    rows = np.arange(300)
    assert (trace.seen[:, 0] == before[rows, trace.mover]).all()
    assert (trace.seen[:, 1] == before[rows, 1 - trace.mover]).all()


def test_the_compiled_line_is_the_delay_line() -> None:
    clocks, rng = Clocks(3.0, 1.3), np.random.default_rng(0)
    size = capacity(clocks)
    ring_t, ring_x = np.empty((2, size)), np.empty((2, size))
    head, read = np.zeros(2, np.int64), np.zeros(2, np.int64)
    start(ring_t, ring_x, head, read, 0, 7.0)
    line = DelayLine(Delays("constant", clocks.delay), initial=7.0)
    t = 0.0
    for _ in range(3000):
        t += rng.exponential(1 / 6)
        if rng.random() < 0.5:
            assert push(ring_t, ring_x, head, read, 0, t, t * t, clocks.delay)
            line.push(t, t * t)
        else:
            assert latest(ring_t, ring_x, head, read, 0, t, clocks.delay) == line.latest(t)


def test_the_compiled_line_says_when_it_runs_over() -> None:
    ring_t, ring_x = np.empty((2, 4)), np.empty((2, 4))
    head, read = np.zeros(2, np.int64), np.zeros(2, np.int64)
    start(ring_t, ring_x, head, read, 0, 0.0)
    fits = [push(ring_t, ring_x, head, read, 0, float(t), 0.0, 100.0) for t in range(5)]
    assert fits == [True, True, True, False, False]


@pytest.mark.parametrize("clocks", [Clocks(2.0, 0.7, 0.3), Clocks(2.0, 0.7, 0.3, synchronous=True)])
def test_rewards_are_the_integral_of_discounted_profit(clocks: Clocks) -> None:
    engine = Engine(MARKET, clocks, [1.5, 1.8], 4)
    path: list[tuple[float, np.ndarray]] = []  # (since, profits)
    own = [0.0, 0.0]
    nodes, weights = np.polynomial.legendre.leggauss(12)
    path.append((0.0, engine.profit.copy()))
    for _ in range(60):
        turn = engine.advance()
        for j, i in enumerate(turn.movers):
            ends = [s for s, _ in path[1:]] + [turn.time]
            total = 0.0
            for (a, profit), b in zip(path, ends, strict=True):
                a = max(a, own[i])
                if b > a:
                    x = (b - a) / 2 * nodes + (a + b) / 2
                    total += (b - a) / 2 * (weights * clocks.rho * np.exp(-clocks.rho * (x - own[i]))).sum() * profit[i]
            assert turn.rewards[j] == pytest.approx(total, abs=1e-10)
            assert turn.factors[j] == pytest.approx(np.exp(-clocks.rho * (turn.time - own[i])), rel=1e-12)
        for j, i in enumerate(turn.movers):
            own[i] = turn.time
            engine.set(i, rule(i)(turn.seen[j]))
        path.append((turn.time, engine.profit.copy()))


def test_a_constant_profit_is_worth_itself() -> None:
    for rate in (0.2, 1.0, 5.0):
        found = []
        engine = Engine(MARKET, Clocks(rate, 1.0), [1.6, 1.7], 5)
        profit = MARKET.profit([1.6, 1.7])
        for _ in range(50):
            turn = engine.advance()
            i = turn.movers[0]
            found.append(turn.rewards[0] + turn.factors[0] * profit[i] - profit[i])
            engine.set(i, [1.6, 1.7][i])
        assert np.abs(found).max() < 1e-12


def test_merged_clocks_fire_at_twice_the_rate_and_fairly() -> None:
    rate, n = 2.5, 20_000
    rows = turns(Clocks(rate), n)
    gaps = np.diff(rows[:, 0])
    assert gaps.mean() == pytest.approx(1 / (2 * rate), rel=4 / np.sqrt(n))
    assert np.std(gaps) == pytest.approx(1 / (2 * rate), rel=0.04)  # exponential: deviation equals mean
    assert rows[:, 1].mean() == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(n))


@pytest.mark.parametrize("synchronous", [False, True])
@pytest.mark.parametrize("c", [4.0, 3.7])
def test_time_rescaling_changes_nothing_but_the_unit_of_time(c: float, synchronous: bool) -> None:
    base = Clocks(1.5, 0.9, 0.05, synchronous)
    scaled = replace(base, rate=c * base.rate, delay=base.delay / c, rho=c * base.rho)
    first, second = turns(base, 500), turns(scaled, 500)
    assert second[:, 0] * c == pytest.approx(first[:, 0], rel=1e-11)
    assert second[:, 1:] == pytest.approx(first[:, 1:], abs=1e-10)


@pytest.mark.parametrize("rate", [1.0, 3.0, 3.7, 10.0])
@pytest.mark.parametrize(("ticks", "lag"), [(0.0, 1), (0.4, 1), (1.0, 1), (2.0, 2), (2.3, 3), (6.0, 6)])
def test_rounding_of_times_does_not_decide_what_is_seen_at_a_tick(rate: float, ticks: float, lag: int) -> None:
    """A latency of a whole number of ticks is just that, in every unit of time."""
    engine = Engine(MARKET, Clocks(rate, ticks / rate, synchronous=True), [1.0, 1.0])
    for k in range(300):
        turn = engine.advance()
        assert (turn.seen[:, 1] == max(1.0, 1.0 + k - lag + 1)).all()
        for i in turn.movers:
            engine.set(i, 2.0 + k)


@pytest.mark.parametrize("synchronous", [False, True])
def test_swapping_the_firms_swaps_everything(synchronous: bool) -> None:
    market = Market((2.0, 2.3), (1.0, 0.9))
    swapped = Market((2.3, 2.0), (0.9, 1.0))
    clocks = Clocks(1.0, 0.6, synchronous=synchronous)
    first = play(Engine(market, clocks, [1.5, 1.8], 3), [rule(0), rule(1)], 200)
    other = play(Engine(swapped, replace(clocks, labels=(1, 0)), [1.8, 1.5], 3), [rule(1), rule(0)], 200)
    assert (first.mover == 1 - other.mover).all()
    assert (first.seen == other.seen).all()
    assert (first.prices == other.prices[:, ::-1]).all()


def test_three_firms_see_two_rivals() -> None:
    market = Market((2.0,) * 3, (1.0,) * 3)
    trace = play(Engine(market, Clocks(1.0, 0.5), [1.5, 1.6, 1.7], 0), [lambda s: float(s.mean())] * 3, 100)
    assert trace.seen.shape == (100, 3)
    assert set(trace.mover) == {0, 1, 2}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("clocks", [Clocks(), Clocks(synchronous=True), Clocks(2.0, 1.0)])
def test_pettingzoo_accepts_the_environment(clocks: Clocks, capsys: pytest.CaptureFixture[str]) -> None:
    api_test(PricingEnv(clocks=clocks, events=40), num_cycles=100)


def test_the_environment_hands_out_the_engine() -> None:
    clocks = Clocks(1.0, 0.5)
    env = PricingEnv(clocks=clocks, box=(1.4, 2.0), events=60)
    env.reset(seed=3)
    engine = Engine(MARKET, clocks, [1.7, 1.7], 3)
    met = set()
    for k, agent in enumerate(env.agent_iter()):
        seen, reward, _, over, info = env.last()
        if over:
            break
        turn = engine.advance()
        i = turn.movers[0]
        assert agent == f"firm_{i}"
        assert (seen == turn.seen[0]).all()
        assert info == {"time": turn.time, "factor": turn.factors[0]}
        if i in met:
            assert reward == pytest.approx(turn.rewards[0], abs=1e-15)
        met.add(i)
        action = np.sin(k)
        env.step(np.array([action]))
        engine.set(i, 1.4 + (float(action) + 1) / 2 * (2.0 - 1.4))
    assert engine.events == 60


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Clocks(rate=-1.0), "Clocks: rate = -1.0"),
        (lambda: Clocks(delay=-0.1), "Clocks: delay"),
        (lambda: Clocks(rho=0.0), "Clocks: rho"),
        (lambda: Clocks(labels=(0, 0)), "Clocks: labels"),
        (lambda: Engine(MARKET, Clocks(labels=(0, 1, 2)), [1.5, 1.5]), "Clocks: labels"),
        (lambda: Clocks(labels=5), "Clocks: labels"),  # type: ignore[arg-type]
        (lambda: Clocks(labels=(0, None)), "Clocks: labels"),  # type: ignore[arg-type]
        (lambda: Clocks(labels=()), "Clocks: labels"),
        (lambda: Clocks(synchronous="yes"), "Clocks: synchronous"),  # type: ignore[arg-type]
        (lambda: Clocks(1e3, 1e12), "Clocks: delay"),
        (lambda: Clocks(rate=1e-320), "Clocks: rate"),
        (lambda: Engine(MARKET, Clocks(), [1.5, 1.5], 2**63), "Engine: seed"),
        (lambda: Engine(MARKET, None, [1.5, 1.5]), "Engine: clocks"),  # type: ignore[arg-type]
        (lambda: Engine(MARKET, Clocks(), [1.5, 1.5]).observe(-1), "Engine.observe: firm"),
        (lambda: play(Engine(MARKET, Clocks(), [1.5, 1.5]), [1, 2], 5), "play: policies"),  # type: ignore[list-item]
        (lambda: play(Engine(MARKET, Clocks(), [1.5, 1.5]), [lambda s: np.nan] * 2, 5), "play: policies"),
        (lambda: PricingEnv(clocks=Clocks(labels=(0, 1, 2))), "Clocks: labels"),
        (lambda: PricingEnv().step([0.0]), "PricingEnv.step: call reset"),
        (lambda: PricingEnv().observe("firm_0"), "PricingEnv.observe: agent"),
        (lambda: Engine(MARKET, Clocks(), [1.5]), "Engine: prices"),
        (lambda: Engine(MARKET, Clocks(), [1.5, 1.5]).set(0, 1.6), "Engine.set: firm = 0"),
        (lambda: play(Engine(MARKET, Clocks(), [1.5, 1.5]), [rule(0)], 5), "play: policies"),
        (lambda: PricingEnv(box=(2.0, 1.0)), r"PricingEnv: box"),
    ],
)
def test_bad_input_names_the_argument(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()  # type: ignore[operator]


def test_time_stands_still_until_the_mover_has_set_its_price() -> None:
    engine = Engine(MARKET, Clocks(), [1.5, 1.5])
    engine.advance()
    with pytest.raises(ConfigError, match=r"Engine.advance: set the price"):
        engine.advance()


def test_draws_are_counted_by_event() -> None:
    """Event k's time uses draw k, whatever the prices."""
    engine = Engine(MARKET, Clocks(), [1.5, 1.5], 9)
    turn = engine.advance()
    assert turn.time == -np.log1p(-counter.uniform(counter.key(9, 80), 0)) / 2
