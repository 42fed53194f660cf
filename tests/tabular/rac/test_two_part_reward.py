"""The decision process with a late reward, and its exact gradients."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.tabular.rac.two_part_reward import TwoPartRewardMDP


def test_the_stationary_gradient_is_the_published_one() -> None:
    world = TwoPartRewardMDP()
    assert np.linalg.norm(world.stationary(world.fast + world.slow)) == pytest.approx(0.128636, abs=5e-7)


def test_gradients_are_linear_in_the_reward_and_sum_to_nothing_per_state() -> None:
    world = TwoPartRewardMDP(3, 4)
    for gradient in (world.stationary, world.finite):
        whole = gradient(world.fast + world.slow)
        assert np.allclose(whole, gradient(world.fast) + gradient(world.slow), rtol=0, atol=1e-14)
        assert np.allclose(whole.sum(1), 0, atol=1e-14)


def test_a_long_trajectorys_gradient_approaches_the_stationary_one() -> None:
    far = [
        np.linalg.norm(w.finite(w.fast) - w.stationary(w.fast))
        for w in (TwoPartRewardMDP(steps=50), TwoPartRewardMDP(steps=2000))
    ]
    assert far[1] < far[0] / 20


def test_the_stream_is_that_of_drawing_one_by_one() -> None:
    world = TwoPartRewardMDP(steps=7)
    states, actions = world.sample(5, np.random.default_rng(9))
    g = np.random.default_rng(9)
    for i in range(5):
        at = g.integers(0, 3)
        for t in range(7):
            action = g.choice(2, p=world.policy[at])
            assert (states[i, t], actions[i, t]) == (at, action)
            at = g.choice(3, p=world.transitions[at, action])


def test_sampled_directions_average_to_the_exact_expectation() -> None:
    world = TwoPartRewardMDP(steps=20)
    states, actions = world.sample(20_000, np.random.default_rng(0))
    factors = world.returns(world.fast[states, actions])
    found = world.directions(states, actions, factors)
    error = found.std(0) / np.sqrt(len(found))
    assert (np.abs(found.mean(0) - world.finite(world.fast)) < 4.5 * error).all()


def test_directions_are_sums_of_scores() -> None:
    world = TwoPartRewardMDP(steps=4)
    states, actions = world.sample(3, np.random.default_rng(1))
    factors = np.random.default_rng(2).normal(size=states.shape)
    expected = np.zeros((3, 3, 2))
    for i in range(3):
        for t in range(4):
            s = states[i, t]
            expected[i, s] += factors[i, t] * (np.eye(2)[actions[i, t]] - world.policy[s]) / 4
    assert np.allclose(world.directions(states, actions, factors), expected, rtol=0, atol=1e-14)
