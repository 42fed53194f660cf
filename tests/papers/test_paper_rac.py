"""RAC's experiment."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from stretto.papers import rac
from stretto.papers.base import Settings
from stretto.papers.rac_slack import slack
from stretto.tabular.rac.two_part_reward import TwoPartRewardMDP

EXACT_MEAN = 60.16287689803
"""To 1e-9 relative to the ratio's own conditioning: what this package computes; published as 60.16."""


@pytest.mark.slow
def test_the_exact_figure_and_the_published_stream_come_out() -> None:
    outcome = rac.reproduce(Settings(quick=True))
    assert outcome.passed, [c.name for c in outcome.checks if c.passed is False]
    asked = {c.name: c for c in outcome.checks}
    assert "rac-slack: (2) bias on slack: 1 - R^2" in asked
    assert asked["bias ratio, exact, T = 50: mean; by D"].measured[0] == pytest.approx(EXACT_MEAN, abs=1e-9)
    assert asked["bias ratio, the paper's stream: mean; by D"].measured[0] == pytest.approx(47.88, abs=0.005)


def test_without_an_end_the_ratio_is_one_over_the_missing_mass() -> None:
    world = TwoPartRewardMDP(99, 98)
    fast, slow = world.stationary(world.fast), world.stationary(world.slow)
    for tau in (1000.0, 50.0):
        for delay in (5, 20, 50):
            age = rac.weight(delay, tau)
            assert age == pytest.approx(math.exp(-delay / tau), abs=1e-15)
            ratio = np.linalg.norm(slow) / np.linalg.norm(fast + age * slow - fast - slow)
            assert ratio == pytest.approx(1 / (1 - age), rel=1e-12)


def test_the_objective_feeds_the_slow_part_back_once_weighted_by_age() -> None:
    g = np.random.default_rng(0)
    fast, slow = g.normal(size=(3, 4)), g.uniform(-2, 2, size=(3, 4))
    assert np.allclose(rac.factors(fast, slow, 20), fast + math.exp(-20 / 1000) * slow, rtol=0, atol=1e-12)


def test_the_slack_of_late_rewards_comes_along() -> None:
    outcome = slack(Settings(quick=True, first_seed=40))
    assert outcome.passed, [c.name for c in outcome.checks if c.passed is False]
    conditions = [c.name[:3] for c in outcome.checks if c.passed is not None]
    assert {"(1)", "(2)", "(3)", "(4)"} <= set(conditions)
    assert outcome.plot is not None
    outcome.plot(figure := Figure())
    assert len(figure.axes) == 3


@pytest.mark.slow
def test_the_conditions_hold_with_other_worlds_and_all_repetitions() -> None:
    assert rac.reproduce(Settings(first_seed=100)).passed
