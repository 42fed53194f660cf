"""Mini-CHMAS: exact value, gradient, skill and bound; the compiled loop against its reference and the theory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from stretto.games.foraging.mini import SMOOTHNESS, Mini, mini
from stretto.games.foraging.mini_loop import ARM, PAY, SEASON, Climb, climb
from stretto.games.foraging.strategist import Strategist
from stretto.kernel.errors import ConfigError
from stretto.tabular.counter import key, normal, uniform
from stretto.tabular.slopes import log_spaced, loglog_slope

MODEL = mini()
ZERO = np.zeros((2, 8))


def plain_climb(model: Mini, seed: int, at: np.ndarray, pulls: int = 1, step: float = 2.0, early: int = 1000) -> Climb:
    """One run (S = 1) on the numbers of ``seed``, with the strategist that the foragers have and the oracles of
    ``Mini``. ``theta`` and ``visits`` agree with ``climb`` bit for bit, the means to rounding."""
    seasons, arms = model.base.shape
    season, choice, pay = (key(seed, stream) for stream in (SEASON, ARM, PAY))
    strategist = Strategist(seasons, arms, scale=step, track=0.0)  # its baseline stays 0
    skill, visits = np.zeros_like(model.gain), np.zeros(model.gain.shape, np.int64)
    squares, errors, pull = [], [], 0
    for _ in range(int(at[-1])):
        squares.append(float((model.gradient(strategist.theta) ** 2).sum()))
        for _ in range(pulls):
            z = int(uniform(season, pull) * seasons)
            m = strategist.choose(z, uniform(choice, pull))
            reward = model.base[z, m] + model.coupling * skill[z, m] + model.noise * normal(pay, pull)
            strategist.note(z, m, reward)
            skill[z, m] += model.rate * (model.gain[z, m] - skill[z, m])
            visits[z, m] += 1
            pull += 1
        errors.append(model.tracking_error(strategist.theta, visits))
        strategist.update()
    means = np.cumsum(squares)[at - 1] / at
    error = np.array([np.mean(errors[:early])])
    return Climb(at, means[None], error, strategist.theta[None], visits[None])


def test_the_start_has_its_published_gradient() -> None:
    rng = np.random.default_rng(0)
    assert np.array_equal(MODEL.base, rng.random((2, 8)))
    assert np.array_equal(MODEL.gain, rng.random((2, 8)))
    assert (MODEL.gradient(ZERO) ** 2).sum() == pytest.approx(0.00990012, abs=5e-9)


def test_the_gradient_is_that_of_the_value() -> None:
    theta = np.random.default_rng(1).normal(size=(2, 8))
    numeric = approx_fprime(theta.ravel(), lambda x: MODEL.value(x.reshape(2, 8)), 1e-7)
    np.testing.assert_allclose(MODEL.gradient(theta).ravel(), numeric, atol=1e-7)
    np.testing.assert_allclose(MODEL.gradient(theta).sum(1), 0, atol=1e-15)


def test_the_value_is_between_the_mean_and_the_best() -> None:
    assert MODEL.value(ZERO) == pytest.approx((MODEL.base + MODEL.gain).mean())
    sure = np.where(MODEL.rewards == MODEL.rewards.max(1, keepdims=True), 100.0, 0.0)
    assert MODEL.value(sure) == pytest.approx(MODEL.best(), abs=1e-12)
    assert mini(coupling=0.0).value(ZERO) == pytest.approx(MODEL.base.mean())


def test_skill_after_visits_is_the_recursion() -> None:
    skill = np.zeros_like(MODEL.gain)
    for n in range(6):
        np.testing.assert_allclose(MODEL.skill(np.full((2, 8), n)), skill, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(skill, MODEL.gain * (1 - 0.8**n), atol=1e-15)
        skill += 0.2 * (MODEL.gain - skill)


def test_the_tracking_error_starts_at_the_whole_gain_and_vanishes() -> None:
    assert MODEL.tracking_error(ZERO, ZERO) == pytest.approx(MODEL.gain.mean())
    assert MODEL.tracking_error(ZERO, ZERO + 200) < 1e-15


def test_the_second_moment_is_above_every_exact_one() -> None:
    rng, largest = np.random.default_rng(0), 0.0
    for scale in (0, 0.3, 1, 3, 10):
        for skilled in (0, 0.5, 1):
            p = MODEL.policy(scale * rng.normal(size=(2, 8)))
            pay = (MODEL.base + skilled * MODEL.gain) ** 2 + MODEL.noise**2
            away = 1 - 2 * p + (p**2).sum(1, keepdims=True)  # |onehot - softmax|^2
            largest = max(largest, float((p * pay * away).sum(1).mean()))
    assert 0.3 * MODEL.second_moment() < largest <= MODEL.second_moment()


def test_the_bound_at_one_number_is_a_number() -> None:
    assert type(MODEL.bound(100)) is float
    assert MODEL.bound(100) == MODEL.bound([10, 100])[1]


def test_exact_ascent_climbs_by_its_formula() -> None:
    theta = np.zeros_like(MODEL.base)
    for k in (1, 2):
        theta = theta + 2 / np.sqrt(k) * MODEL.gradient(theta)
    np.testing.assert_allclose(MODEL.ascent(2), theta)
    assert MODEL.value(MODEL.ascent(1000)) > MODEL.value(MODEL.ascent(100)) > MODEL.value(theta)


def test_the_bound_by_its_formula() -> None:
    k = np.array([1, 100, 10_000])
    smooth = SMOOTHNESS * max(np.ptp(row) for row in MODEL.base + MODEL.gain)
    gap = MODEL.best() - MODEL.value(ZERO)
    by_hand = gap / (2 * k**0.5) + smooth * 2 * MODEL.second_moment() * (1 + np.log(k)) / (2 * k**0.5)
    np.testing.assert_allclose(MODEL.bound(k), by_hand)


@pytest.mark.parametrize("pulls", [1, 5])
def test_the_compiled_loop_is_its_plain_reference(pulls: int) -> None:
    at = np.array([1, 7, 60])
    both = climb(MODEL, [2, 8], at, pulls, early=25)
    for row, seed in enumerate((2, 8)):
        one = plain_climb(MODEL, seed, at, pulls, early=25)
        assert np.array_equal(both.theta[row], one.theta[0])
        assert np.array_equal(both.visits[row], one.visits[0])
        np.testing.assert_allclose(both.squared[row], one.squared[0], rtol=1e-12)
        assert both.error[row] == pytest.approx(one.error[0], rel=1e-12)
    assert both.visits.sum() == 2 * 60 * pulls
    assert both.squared[:, 0] == pytest.approx([0.00990012] * 2, abs=5e-9)


@pytest.mark.parametrize("pulls", [1, 32])
def test_the_mean_squared_gradient_falls_below_the_bound(pulls: int) -> None:
    at = log_spaced(10_000, 41)
    found = climb(MODEL, range(32 if pulls == 1 else 16), at, pulls)
    assert (found.squared.mean(0) < MODEL.bound(at)).all()
    assert loglog_slope(at, found.squared, decades=1).value <= -0.5


@pytest.mark.parametrize(("pulls", "error", "within"), [(1, 0.033, 0.004), (32, 0.0012, 0.0002)])
def test_more_pulls_an_update_keep_the_tactical_layer_quasi_stationary(pulls: int, error: float, within: float) -> None:
    found = climb(MODEL, range(16), np.array([1000]), pulls)
    assert found.error.mean() == pytest.approx(error, abs=within)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Mini(np.zeros((2, 8)), np.zeros((2, 7))), "Mini: gain has shape"),
        (lambda: Mini(np.full((2, 8), np.nan), ZERO), "Mini: base"),
        (lambda: Mini(ZERO, ZERO, rate=0), "Mini: rate = 0"),
        (lambda: Mini(ZERO, ZERO, noise=-1), "Mini: noise = -1"),
        (lambda: Mini(np.zeros((2, 1)), np.zeros((2, 1))), "Mini: arms = 1"),
        (lambda: MODEL.value(np.zeros((2, 9))), "theta has shape"),
        (lambda: MODEL.skill(np.zeros(3)), "Mini.skill: visits"),
        (lambda: MODEL.bound(0), r"Mini.bound: min\(updates\) = 0"),
        (lambda: MODEL.bound(10, step=0), "Mini.bound: step = 0"),
        (lambda: climb(MODEL, [0], [3, 2]), "climb: updates"),
        (lambda: climb(MODEL, [0], [0.5]), "climb: updates"),
        (lambda: climb(MODEL, [0], [5], pulls=0), "climb: pulls = 0"),
        (lambda: climb(MODEL, [0], [5], step=0), "climb: step = 0"),
        (lambda: climb(MODEL, [-1], [5]), "climb: seeds"),
        (lambda: log_spaced(0, 5), "log_spaced: last = 0"),
        (lambda: mini(arms=1), "mini: arms = 1"),
    ],
)
def test_bad_input_is_one_error_that_names_it(made: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made()
