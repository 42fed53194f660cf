"""The exact laws: published digits, limits, and simulation within its standard error."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.chains import hitting_times, mixing_time, stationary, time_reversal
from stretto.tabular.td.kernel import td
from stretto.tabular.td.laws import (
    best_h,
    constant_covariance,
    drift,
    efficiency_bound,
    late_covariance,
    worst_reverse_hitting_time,
)
from stretto.tabular.td.moments import moments
from stretto.tabular.td.process import RewardProcess
from stretto.tabular.td.steps import constant, decreasing
from stretto.tabular.td.three_state import three_state


@pytest.mark.parametrize(
    ("horizon", "late", "steady", "bound", "ratio"),
    [
        (4, 0.041713, 0.026716, 0.037142, 1.1231),
        (8, 0.054459, 0.035551, 0.047933, 1.1361),
        (32, 0.064163, 0.042420, 0.056004, 1.1457),
        (64, 0.065785, 0.043578, 0.057341, 1.1473),
    ],
)
def test_constants_in_the_horizon(horizon: int, late: float, steady: float, bound: float, ratio: float) -> None:
    process = three_state(horizon, 4 * horizon, 0.1)
    scale = 0.1 / horizon**3
    ours = np.diag(late_covariance(process, horizon / 0.1)).max() * scale
    best = np.diag(efficiency_bound(process)).max() * scale
    assert ours == pytest.approx(late, abs=6e-7)
    assert np.diag(constant_covariance(process)).max() / horizon**2 == pytest.approx(steady, abs=6e-7)
    assert best == pytest.approx(bound, abs=6e-7)
    assert ours / best == pytest.approx(ratio, abs=6e-5)


def test_the_best_h_comes_within_six_percent_of_the_bound() -> None:
    process = three_state(8, 32, 0.1)
    h, spread = best_h(process)
    assert spread / np.diag(efficiency_bound(process)).max() == pytest.approx(1.058, abs=5e-4)
    around = [np.diag(late_covariance(process, h * f)).max() for f in (0.97, 1.03)]
    assert spread <= min(around)


@pytest.mark.parametrize(("mass", "late"), [(0.02, 0.056578), (0.05, 0.056479), (0.1, 0.056287), (0.33, 0.054671)])
def test_constants_in_the_mass(mass: float, late: float) -> None:
    spread = np.diag(late_covariance(three_state(8, 64, mass), 8 / mass)).max()
    assert spread * mass / 512 == pytest.approx(late, abs=6e-7)


@pytest.mark.parametrize(
    ("exit_steps", "mixing", "late", "steady"),
    [
        (8, 7, 0.034401, 0.026192),
        (32, 30, 0.054459, 0.035551),
        (128, 119, 0.055987, 0.032965),
        (2048, 1906, 0.054313, 0.030416),
        (8192, 7623, 0.054181, 0.030254),
    ],
)
def test_constants_in_the_mixing_time(exit_steps: int, mixing: int, late: float, steady: float) -> None:
    process = three_state(8, exit_steps, 0.1)
    assert mixing_time(process.transitions) == mixing
    assert np.diag(late_covariance(process, 80)).max() * 0.1 / 512 == pytest.approx(late, abs=6e-7)
    assert np.diag(constant_covariance(process)).max() / 64 == pytest.approx(steady, abs=6e-7)


def test_reverse_hitting_times() -> None:
    assert worst_reverse_hitting_time(three_state(8, 32, 0.1).transitions) == pytest.approx(145.778, abs=6e-4)
    assert worst_reverse_hitting_time(three_state(8, 512, 0.1).transitions) == pytest.approx(2067.845, abs=6e-4)
    skewed = three_state(8, 32, 0.1, skew=0.5, exits=(0.01, 0.08)).transitions
    forward, back = hitting_times(skewed), hitting_times(time_reversal(skewed))
    mu = stationary(skewed)
    np.testing.assert_allclose(forward @ mu, np.full(3, (forward @ mu)[0]), rtol=1e-10)  # Kemeny's constant
    np.testing.assert_allclose(back @ mu, forward @ mu, rtol=1e-10)
    assert np.abs(back - forward).max() > 1


def test_finite_time_moments() -> None:
    process = three_state(8, 32, 0.1)
    late = moments(process, decreasing(80), 20_000)
    np.testing.assert_allclose(np.diag(late.second) * 20_000, [336.867, 259.550, 22.983], atol=6e-4)
    np.testing.assert_allclose(late.mean, [-0.03986, -0.03109, 0.00025], atol=6e-6)
    steady = moments(process, np.full(20_000, 0.05), 20_000)
    np.testing.assert_allclose(np.diag(steady.second) / 0.05, [2.25308, 1.70860, 0.33871], atol=6e-6)
    np.testing.assert_allclose(steady.states, stationary(process.transitions), atol=1e-9)


def test_moments_of_two_transitions_by_enumeration() -> None:
    rng = np.random.default_rng(0)
    process = RewardProcess(rng.dirichlet(np.ones(3), 3), rng.normal(size=(3, 3)), [0.5, 0.9, 0.7], [0.2, 0.3, 0.5])
    mean, second, total = np.zeros(3), np.zeros((3, 3)), 0.0
    for path in np.ndindex(3, 3, 3):
        values = np.full(3, 0.4)
        p = process.start[path[0]]
        for s, after, eta in zip(path, path[1:], (0.6, 0.3), strict=False):
            p *= process.transitions[s, after]
            target = process.rewards[s, after] + process.gamma[s] * values[after]
            values[s] += eta * (target - values[s])
        error = values - process.values()
        mean, second, total = mean + p * error, second + p * np.outer(error, error), total + p
    ours = moments(process, [0.6, 0.3], 2, values=0.4)
    np.testing.assert_allclose(ours.mean, mean, atol=1e-14)
    np.testing.assert_allclose(ours.second, second, atol=1e-14)
    assert total == pytest.approx(1)


def test_small_constant_steps_tend_to_the_lyapunov_solution() -> None:
    process = three_state(4, 8, 0.25, skew=0.4)
    limit = constant_covariance(process)
    gaps = []
    for eta in (0.02, 0.005):
        found = moments(process, constant(eta), int(40 / eta), values=process.values())
        gaps.append(np.abs(found.second / eta - limit).max() / np.abs(limit).max())
    assert gaps[1] < 0.35 * gaps[0] < 0.01  # an error of first order in eta


def test_decreasing_steps_tend_to_the_lyapunov_solution() -> None:
    process = three_state(4, 8, 0.25, skew=0.4)
    found = moments(process, decreasing(32), 300_000, values=process.values())
    np.testing.assert_allclose(found.second * 300_000, late_covariance(process, 32), rtol=0, atol=3e-2)


def test_simulation_has_these_moments() -> None:
    process, seeds = three_state(8, 32, 0.1), np.arange(4096)
    for steps in (decreasing(80), constant(0.05)):
        exact = moments(process, steps, 2000)
        error = td(process, steps, seeds, [2000]).values[:, 0] - process.values()
        for sample, expected in ((error, exact.mean), (error**2, np.diag(exact.second))):
            standard = sample.std(0, ddof=1) / np.sqrt(len(seeds))
            assert (np.abs(sample.mean(0) - expected) <= 4 * standard).all()


def test_laws_name_what_they_refuse() -> None:
    process = three_state(8, 32, 0.1)
    with pytest.raises(ConfigError, match="late_covariance: h = 5 is too small"):
        late_covariance(process, 5)
    reducible = RewardProcess(np.eye(2), [1, 0], 0.9)
    for law in (drift, constant_covariance, efficiency_bound):
        with pytest.raises(ConfigError, match="reducible"):
            law(reducible)
    for state in (5, -1, 0.5):
        with pytest.raises(ConfigError, match="best_h: state"):
            best_h(process, state)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="moments: smallest of steps"):
        moments(process, [0.1, -0.1], 2)
    with pytest.raises(ConfigError, match="moments: steps"):
        moments(process, [0.1, 0.1], 3)
    with pytest.raises(ConfigError, match="moments: updates"):
        moments(process, constant(0.1), -1)
