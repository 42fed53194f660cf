"""Contextual bandits: variance of grouped rollouts, and a group's mean as baseline."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.objectives import get
from stretto.tabular.sao.context_bandit import ContextBandit, gradient_factors, group_scale


def test_the_law_is_the_published_one_for_single_rollouts() -> None:
    assert ContextBandit().law(64, 1) == pytest.approx(0.00888, abs=5e-6)


@pytest.mark.parametrize("group", [1, 8])
def test_measured_variance_follows_the_law(group: int) -> None:
    world = ContextBandit(contexts=500, seed=5)
    measured = world.measured(get("sao"), 64, group, 4000, np.random.default_rng(0))
    assert measured == pytest.approx(world.law(64, group), rel=0.06)


def test_the_law_grows_with_the_group_and_falls_with_the_rollouts() -> None:
    world = ContextBandit(contexts=500)
    assert world.law(64, 1) < world.law(64, 2) < world.law(64, 8)
    assert world.law(128, 4) == pytest.approx(world.law(64, 4) / 2)


def test_the_perfect_baseline_centres_each_context() -> None:
    world = ContextBandit(contexts=50)
    assert np.allclose((world.policy * world.advantages()).sum(1), 0, atol=1e-12)


@pytest.mark.parametrize("group", [2, 3, 4, 5])
def test_a_groups_mean_as_baseline_scales_the_gradient_by_one_minus_one_over_its_size(group: int) -> None:
    world = ContextBandit(contexts=1, actions=3, seed=group)
    scale = group_scale(get("grpo", std=False), world.policy[0], world.reward[0], group)
    assert scale == pytest.approx(1 - 1 / group, abs=1e-12)


def test_leave_one_out_scales_nothing() -> None:
    world = ContextBandit(contexts=1, actions=3, seed=1)
    assert group_scale(get("rloo"), world.policy[0], world.reward[0], 3) == pytest.approx(1, abs=1e-12)


def test_on_the_policy_itself_the_slope_is_the_advantage() -> None:
    advantages = np.array([1.0, -2.0, 0.5])
    assert np.allclose(
        gradient_factors(get("sao"), np.array([0.1, 0.5, 0.9]), advantages=advantages), advantages, atol=1e-12
    )
