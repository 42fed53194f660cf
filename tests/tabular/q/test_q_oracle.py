"""Exact limits of Q-learning under corruption."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

from stretto.kernel.errors import ConfigError
from stretto.tabular.mdp import MDP, action_values
from stretto.tabular.q import Corruption, Rule, best_q, corrupt, mean_limit, q_learning, robust_limit, two_point_gap
from stretto.tabular.q.oracle import population_trimmed_mean, shares
from stretto.tabular.q.robust import trimmed_mean

LIMITS = {0.005: 0.0302, 0.01: 0.0578, 0.05: 0.2435, 0.1: 0.4530}


def test_the_world() -> None:
    assert best_q(corrupt(0)).max() == pytest.approx(4.187393, abs=5e-7)
    assert corrupt(0).transitions.min() >= 0.1 / 6


@pytest.mark.parametrize(("share", "published"), LIMITS.items())
def test_the_robust_limit_is_near_and_the_same_for_any_magnitude(share: float, published: float) -> None:
    world = corrupt(0)
    near, far = (robust_limit(world, Corruption(share, m), 0.5) for m in (10.0, 100.0))
    assert np.abs(near - best_q(world)).max() == pytest.approx(published, abs=1e-4)
    assert near == pytest.approx(far, abs=1e-10)


def test_the_robust_limit_is_linear_in_the_share() -> None:
    world = corrupt(0)
    x = np.array([0.01, 0.05, 0.1])
    y = np.array([np.abs(robust_limit(world, Corruption(e), 0.5) - best_q(world)).max() for e in x])
    rest = y - np.polyval(np.polyfit(x, y, 1), x)
    assert 1 - (rest**2).sum() / ((y - y.mean()) ** 2).sum() > 0.999


def test_without_trim_the_robust_limit_is_that_of_the_mean_and_without_corruption_the_best() -> None:
    world = corrupt(0)
    for corruption in (Corruption(0.05), Corruption(0.05, 10, "next"), Corruption(0.05, 10, "both")):
        assert robust_limit(world, corruption, 0.5, trim=0.0) == pytest.approx(mean_limit(world, corruption), abs=1e-9)
    assert robust_limit(world, Corruption(), 0.5) == pytest.approx(best_q(world), abs=1e-9)


def test_the_mean_limit_solves_its_equation() -> None:
    world, e, m = corrupt(0), 0.05, 10.0
    q = mean_limit(world, Corruption(e, m))
    shifted = MDP(world.transitions, (1 - e) * world.rewards - e * m, world.gamma)
    assert q == pytest.approx(action_values(shifted, q.max(1)), abs=1e-9)
    q = mean_limit(world, Corruption(e, m, "next"))
    told = (1 - e) * action_values(world, q.max(1)) + e * (-m + world.gamma * q[0].max())
    assert q == pytest.approx(told, abs=1e-9)
    mislabelled = shares(world, Corruption(e, m, "both"))
    assert mislabelled.min() < e < mislabelled.max()


@pytest.mark.parametrize("states", ["none", "next", "both"])
def test_learners_reach_their_limits(states: str) -> None:
    """What is left after averaging is sampling: .1 and .03, where the errors to Q* are 5 and .47."""
    world, corruption = corrupt(0), Corruption(0.1, 10.0, states)  # type: ignore[arg-type]
    options = {"epochs": 70, "batch": 8000, "noise": 0.5}
    mean = q_learning(world, range(8), Rule("mean"), corruption, **options)[:, -20:].mean((0, 1))
    assert np.abs(mean - mean_limit(world, corruption)).max() < 0.1
    trimmed = q_learning(world, range(8), Rule("trimmed"), corruption, **options)[:, -20:].mean((0, 1))
    assert np.abs(trimmed - robust_limit(world, corruption, 0.5)).max() < 0.03


def test_population_trimmed_mean_against_quantiles_and_samples() -> None:
    means, weights = np.array([0.0, 2.0, -50.0]), np.array([0.5, 0.4, 0.1])
    spread, trim = np.array([1.0, 0.5, 0.0]), 0.15
    exact = float(population_trimmed_mean(weights, means, spread, trim))
    g = np.random.default_rng(0)
    part = g.choice(3, 400_000, p=weights)
    assert trimmed_mean(means[part] + spread[part] * g.normal(size=part.size), trim) == pytest.approx(exact, abs=0.01)
    one = float(population_trimmed_mean([1.0], [3.0], [2.0], 0.2))
    assert one == pytest.approx(3.0, abs=1e-12)
    # half of the mass at -50 is trimmed: a quantile inside a point mass
    inside = float(population_trimmed_mean([0.2, 0.8], [-50.0, 0.0], [0.0, 1.0], 0.1))
    upper = norm.ppf(1 - 0.1 / 0.8)
    assert inside == pytest.approx((0.1 * -50 - 0.8 * norm.pdf(upper)) / 0.8, abs=1e-9)


def test_two_worlds_that_nobody_can_tell_apart() -> None:
    share, gamma, p = 0.1, 0.8, 0.4
    gap, in_q = two_point_gap(share, gamma)
    assert gap == pytest.approx(share / (1 - share), abs=1e-15)
    other = p + gap
    assert (1 - share) * p + share * 1.0 == pytest.approx((1 - share) * other + share * 0.0, abs=1e-15)
    one, two = (best_q(MDP([[[1.0]]], [[mean]], gamma))[0, 0] for mean in (p, other))
    assert two - one == pytest.approx(in_q, rel=1e-9)


def test_bad_input_is_one_error_that_names_the_argument() -> None:
    world = corrupt(0)
    for call, words in (
        (lambda: robust_limit(world, Corruption(0.1), -1.0), "robust_limit: noise"),
        (lambda: robust_limit(world, Corruption(0.1), 0.5, trim=0.5), "robust_limit: trim"),
        (lambda: robust_limit(world, Corruption(0.1), 0.5, trim=[0.1, 0.2, 0.3]), "robust_limit: trim"),
        (lambda: robust_limit(world, Corruption(0.1), 0.5, tolerance=-1.0), "robust_limit: tolerance"),
        (lambda: robust_limit(world, Corruption(0.1), 0.5, tolerance=1e-300), "robust_limit: no fixed point"),
        (lambda: population_trimmed_mean([1.0], [0.0], [1.0], 0.5), "population_trimmed_mean: trim"),
        (lambda: population_trimmed_mean([0.5], [0.0], [1.0], 0.1), "population_trimmed_mean: weights"),
        (lambda: two_point_gap(0.5, 0.9), "two_point_gap: share"),
        (lambda: two_point_gap(0.1, 1.0), "two_point_gap: gamma"),
        (lambda: mean_limit(MDP(np.eye(2)[:, None], np.zeros((2, 1)), 0.5), Corruption(0.1, 1, "both")), "reducible"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()
