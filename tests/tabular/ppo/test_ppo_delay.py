"""The late critic: closed forms, brute-force equations, and the learner itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.collapse.stability import lag_limit, spectral_radius
from stretto.tabular.delay import Delays
from stretto.tabular.ppo import Lateness, TabularPPO, layered, lock, ppo_tabular
from stretto.tabular.ppo import delay_oracle as late
from stretto.tabular.ppo.measure import growth, late_mean, running_mean
from stretto.tabular.ppo.oracle import occupancy
from stretto.tabular.slopes import log_spaced

WORLD = layered(0)
UNIFORM = WORLD.uniform()
MAX_D = float(occupancy(WORLD, UNIFORM).max())


@pytest.mark.parametrize(
    ("tau", "threshold", "errors"),
    [
        (0, 2.0, (0.049823, 0.135702, 0.712737)),
        (2, 0.618034, (0.016757, 0.048249, 0.246448)),
        (16, 0.095164, (0.002580, 0.007382, 0.035584)),
    ],
)
def test_the_table_of_stationary_errors(tau: int, threshold: float, errors: tuple[float, ...]) -> None:
    limit = late.largest_step(WORLD, UNIFORM, tau)
    assert limit * MAX_D == pytest.approx(threshold, abs=5e-7)
    found = [late.stationary_critic_error(WORLD, UNIFORM, f * limit, 64, tau) for f in (0.25, 0.5, 0.9)]
    assert found == pytest.approx(errors, abs=6e-7)
    assert late.stationary_critic_error(WORLD, UNIFORM, 1.15 * limit, 64, tau) == math.inf
    assert late.mean_growth(WORLD, UNIFORM, 0.99 * limit, tau) < 0 < late.mean_growth(WORLD, UNIFORM, 1.01 * limit, tau)


@pytest.mark.parametrize("tau", [0, 1, 2, 7])
def test_the_variance_solves_the_equation_of_second_moments(tau: int) -> None:
    d, beta, n, variance = 0.3, 0.6 * lag_limit(tau) / 0.3, 64, 0.7
    operator = late.second_moment_operator(d, beta, n, tau)
    assert spectral_radius(operator) < 1
    q = np.zeros(len(operator))
    q[0] = beta**2 * d * variance / n
    moment = np.linalg.solve(np.eye(len(q)) - operator, q)
    assert late.stationary_variance(d, beta, n, tau, variance) == pytest.approx(moment[0], rel=1e-9)


def test_the_operator_is_the_mean_over_the_binomial() -> None:
    d, beta, n, tau = 0.4, 0.9, 3, 1
    total = np.zeros((4, 4))
    for hits in range(n + 1):
        matrix = np.array([[1, -beta * hits / n], [1, 0]])
        total += math.comb(n, hits) * d**hits * (1 - d) ** (n - hits) * np.kron(matrix, matrix)
    assert late.second_moment_operator(d, beta, n, tau) == pytest.approx(total, abs=1e-12)


def test_without_delay_the_variance_has_a_closed_form() -> None:
    for d, beta, n in ((0.1, 0.7, 1), (0.3, 0.7, 8), (1.0, 1.5, 64)):
        closed = (beta * 2.0 / n) / (2 - beta * (d + (1 - d) / n))
        assert late.stationary_variance(d, beta, n, 0, 2.0) == pytest.approx(closed, rel=1e-10)
    single = [late.stationary_variance(d, 0.7, 1, 0, 2.0) for d in (0.01, 0.3, 0.9)]
    assert single == pytest.approx([0.7 * 2 / (2 - 0.7)] * 3, rel=1e-10)  # whatever the visits
    d, n = 0.2, 8
    edge = 2 / (1 + (1 - d) / (n * d)) / d
    assert late.stationary_variance(d, 0.999 * edge, n, 0, 1.0) < math.inf
    assert late.stationary_variance(d, 1.001 * edge, n, 0, 1.0) == math.inf


def test_few_episodes_lose_the_second_moment_before_the_mean() -> None:
    step = 0.9 * late.largest_step(WORLD, UNIFORM, 0)
    assert late.mean_growth(WORLD, UNIFORM, step, 0) < 0
    radius = spectral_radius(late.second_moment_operator(MAX_D, step, 8, 0))
    assert radius == pytest.approx(1.49, abs=0.005)
    assert late.stationary_variance(MAX_D, step, 8, 0, 1.0) == math.inf
    assert late.stationary_critic_error(WORLD, UNIFORM, step, 8, 0) == math.inf


def test_the_simple_rule_is_sufficient_and_not_necessary() -> None:
    for tau in range(1, 30):
        rule = 1 / (2 * tau + 1) / MAX_D
        assert late.mean_growth(WORLD, UNIFORM, rule, tau) < 0
        assert rule < late.largest_step(WORLD, UNIFORM, tau)
        assert late.mean_growth(WORLD, UNIFORM, 1.3 * rule, tau) < 0


def test_a_single_run_without_delay_grows_slower_than_its_mean() -> None:
    step = 1.15 * late.largest_step(WORLD, UNIFORM, 0)
    single = late.sampled_growth(MAX_D, step, 64)
    drawn = np.random.default_rng(0).binomial(64, MAX_D, 200_000) / 64
    logs = np.log(np.abs(1 - step * drawn))
    assert single == pytest.approx(logs.mean(), abs=4 * logs.std() / 200_000**0.5)
    assert 0.7 < single / late.mean_growth(WORLD, UNIFORM, step, 0) < 0.8
    assert late.sampled_growth(0.5, 1.0, 1) == -math.inf  # one visit sets the error to its noise


def test_a_step_that_lands_on_the_target_shrinks_without_bound() -> None:
    still = layered(0, states=1, actions=1)
    assert late.mean_growth(still, still.uniform(), 1.0, 0) == -math.inf
    world = lock(2)  # some states are always visited, others a third or two thirds of the time
    assert late.mean_growth(world, world.uniform(), 1.0, 0) == pytest.approx(math.log(2 / 3))


def frozen(beta: float, tau: int, iterations: int) -> Any:
    options = TabularPPO(episodes=64, epochs=0, critic_step=beta, critic_power=0)
    return ppo_tabular(WORLD, options, iterations, range(16), Lateness(Delays("constant", tau))).error


def test_the_learner_stands_where_the_oracle_says() -> None:
    beta = 0.5 * late.largest_step(WORLD, UNIFORM, 2)
    seen = frozen(beta, 2, 2500)[:, -2000:].mean()
    assert seen == pytest.approx(late.stationary_critic_error(WORLD, UNIFORM, beta, 64, 2), rel=0.05)


def test_beyond_the_threshold_the_learner_grows_as_the_companion_matrix() -> None:
    beta = 1.15 * late.largest_step(WORLD, UNIFORM, 2)
    assert growth(frozen(beta, 2, 2500)) == pytest.approx(late.mean_growth(WORLD, UNIFORM, beta, 2), rel=0.05)


def test_what_records_are_read_as() -> None:
    record = np.arange(9.0)[None] ** 2
    at = np.array([1, 4, 8])
    assert running_mean(record, at)[0].tolist() == [0, 14 / 4, 140 / 8]  # iterates 0 .. t - 1
    assert late_mean(record, at)[0].tolist() == [1, (9 + 16) / 2, (25 + 36 + 49 + 64) / 4]
    assert growth(np.exp(0.2 * np.arange(50.0))[None]) == pytest.approx(0.1)
    points = log_spaced(50_000, 40)
    assert points[0] == 1
    assert points[-1] == 50_000
    assert 35 <= len(points) <= 40


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: late.largest_step(WORLD, UNIFORM, -1), "largest_step: tau"),
        (lambda: late.largest_step(WORLD, UNIFORM, math.nan), "largest_step: tau"),
        (lambda: late.mean_growth(WORLD, UNIFORM, 0.1, 1.5), "mean_growth: tau"),
        (lambda: late.second_moment_operator(0.5, 1, 8, -1), "second_moment_operator: tau"),
        (lambda: late.stationary_variance(0.5, 1, 8, 0.5, 1), "stationary_variance: tau"),
        (lambda: late_mean(np.ones((2, 5)), [1]), "late_mean: at"),  # type: ignore[arg-type]
        (lambda: late_mean(np.ones((2, 5)), np.array([1.5])), "late_mean: at"),
        (lambda: late.largest_step(WORLD, UNIFORM[:2], 1), "policy"),
        (lambda: late.mean_growth(WORLD, UNIFORM, 0, 1), "beta"),
        (lambda: late.stationary_variance(0.0, 1, 8, 0, 1), "d = "),
        (lambda: late.stationary_variance(0.1, 1, 0, 0, 1), "episodes"),
        (lambda: late.stationary_variance(0.1, 1, 8, 0, -1), "variance"),
        (lambda: late.stationary_critic_error(lock(2), lock(2).uniform(), -1, 8, 0), "beta"),
        (lambda: late.second_moment_operator(1.5, 1, 8, 0), "d = "),
        (lambda: late.sampled_growth(0.1, math.nan, 8), "beta"),
        (lambda: log_spaced(0, 40), "last"),
        (lambda: running_mean(np.ones((2, 5)), np.array([5])), "running_mean: at"),
        (lambda: late_mean(np.ones(5), np.array([2])), "late_mean: record"),
        (lambda: growth(np.zeros((2, 9))), "growth: squares"),
    ],
)
def test_bad_input_is_one_error_that_names_the_argument(call: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        call()
