"""The oracles of layered worlds against each other, by hand and by brute force."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.ppo import Layered, layered
from stretto.tabular.ppo import oracle as exact
from stretto.tabular.softmax import softmax

PI = np.array([[[0.5, 0.5], [0.3, 0.7]], [[0.8, 0.2], [0.45, 0.55]]])
CRITIC = np.array([[0.9, 0.2], [0.1, 0.7]])


def golden() -> Layered:
    """Two layers, two states, two actions: sixteen trajectories."""
    transitions = np.array([[[0.7, 0.3], [0.2, 0.8]], [[0.5, 0.5], [0.9, 0.1]]])
    rewards = np.array([[[0.1, 0.6], [0.4, 0.2]], [[1, 0], [0.3, 0.8]]])
    return Layered(np.stack([transitions, transitions]), rewards, np.array([0.6, 0.4]))


def enumerated_update(world: Layered, pi: np.ndarray, critic: np.ndarray, lam: float) -> np.ndarray:
    """``expected_update`` of the current policy by the long way round: a sum over all (S A)^H trajectories."""
    v = np.vstack([critic, np.zeros(world.states)])
    layers, states, actions = pi.shape
    total = np.zeros(pi.shape)
    for path in product(product(range(states), range(actions)), repeat=layers):
        chance = world.start[path[0][0]]
        for h, (s, a) in enumerate(path):
            chance *= pi[h, s, a] * (world.transitions[h, s, a, path[h + 1][0]] if h + 1 < layers else 1)
        advantage = 0.0
        for h, (s, a) in reversed(list(enumerate(path))):
            after = v[h + 1, path[h + 1][0]] if h + 1 < layers else 0.0
            advantage = world.rewards[h, s, a] + after - v[h, s] + lam * advantage
            total[h, s] += chance * advantage * ((np.arange(actions) == a) - pi[h, s])
    return total


def test_the_golden_gradient_and_update() -> None:
    world = golden()
    gradient = exact.gradient(world, PI)[:, :, 1]
    assert gradient == pytest.approx(np.array([[0.058125, -0.00924], [-0.09312, 0.0517275]]), abs=1e-12)
    update = exact.expected_update(world, PI, CRITIC, 0.5)[:, :, 1]
    assert update == pytest.approx(np.array([[0.0890625, -0.0231], [-0.09312, 0.0517275]]), abs=1e-12)


def test_with_full_traces_any_critic_gives_the_gradient() -> None:
    world = golden()
    assert enumerated_update(world, PI, CRITIC, 1.0) == pytest.approx(exact.gradient(world, PI), abs=1e-12)
    assert exact.expected_update(world, PI, CRITIC, 1.0) == pytest.approx(exact.gradient(world, PI), abs=1e-12)
    assert np.abs(exact.expected_update(world, PI, CRITIC, 0.5) - exact.gradient(world, PI)).max() > 0.01


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95])
def test_short_traces_are_unbiased_with_the_true_critic_alone(lam: float) -> None:
    world = golden()
    true = exact.values(world, PI)[1]
    assert enumerated_update(world, PI, true, lam) == pytest.approx(exact.gradient(world, PI), abs=1e-12)
    q, v = exact.values(world, PI)
    advantage = exact.mean_advantages(world, PI, CRITIC, lam)
    centred = advantage - (PI * advantage).sum(-1, keepdims=True)
    bias = exact.occupancy(world, PI)[:, :, None] * PI * (centred - (q - v[:, :, None]))
    found = enumerated_update(world, PI, CRITIC, lam) - exact.gradient(world, PI)
    assert found == pytest.approx(bias, abs=1e-12)
    assert exact.expected_update(world, PI, CRITIC, lam) == pytest.approx(
        enumerated_update(world, PI, CRITIC, lam), abs=1e-12
    )


def test_the_gradient_is_the_slope_of_the_gain() -> None:
    world, g = layered(2, layers=3), np.random.default_rng(0)
    theta = g.normal(size=world.rewards.shape)
    gradient = exact.gradient(world, softmax(theta))
    for at in [(0, 1, 2), (1, 0, 0), (2, 3, 1)]:
        up, down = theta.copy(), theta.copy()
        up[at] += 1e-5
        down[at] -= 1e-5
        slope = (exact.gain(world, softmax(up)) - exact.gain(world, softmax(down))) / 2e-5
        assert slope == pytest.approx(gradient[at], abs=1e-9)


def test_the_best_deterministic_policy_attains_the_optimal_gain() -> None:
    world = golden()
    policies = [np.eye(2)[np.array(bits).reshape(2, 2)] for bits in np.ndindex(2, 2, 2, 2)]
    assert max(exact.gain(world, p) for p in policies) == pytest.approx(exact.optimal_gain(world), abs=1e-12)


def test_the_variance_of_returns_is_that_of_the_sixteen_trajectories() -> None:
    world = Layered(golden().transitions, golden().rewards, golden().start, noise=0.5)
    first = second = 0.0
    for s, a, t, b in np.ndindex(2, 2, 2, 2):
        chance = world.start[s] * PI[0, s, a] * world.transitions[0, s, a, t] * PI[1, t, b]
        total = world.rewards[0, s, a] + world.rewards[1, t, b]
        first, second = first + chance * total, second + chance * (total**2 + 2 * 0.25)
    v = exact.values(world, PI)[1][0]
    by_state = exact.return_variance(world, PI)[0]
    assert world.start @ (by_state + v**2) - first**2 == pytest.approx(second - first**2, abs=1e-12)


def test_the_critic_error_weighs_states_by_their_visits() -> None:
    world = golden()
    v = exact.values(world, PI)[1]
    assert exact.critic_error(world, PI, v) == 0
    off = v.copy()
    off[1, 0] += 2
    assert exact.critic_error(world, PI, off) == pytest.approx(4 * exact.occupancy(world, PI)[1, 0])


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda w: exact.values(w, PI * 0.9), "values: policy"),
        (lambda w: exact.gradient(w, PI[:1]), "gradient: policy"),
        (lambda w: exact.critic_error(w, PI, CRITIC[0]), "critic_error: critic"),
        (lambda w: exact.expected_update(w, PI, CRITIC, 1.1), "lam"),
        (lambda w: exact.expected_update(w, PI, CRITIC * np.nan, 1.0), "critic"),
    ],
)
def test_bad_input_is_one_error_that_names_the_argument(call: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        call(golden())
