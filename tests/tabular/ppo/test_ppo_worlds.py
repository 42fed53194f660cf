"""Layered worlds: what the arrays promise, and the environment over them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from stretto.kernel.errors import ConfigError
from stretto.tabular.gym import read_mdp
from stretto.tabular.ppo import Layered, layered, lock, unrolled
from stretto.tabular.ppo.env import LayeredEnv
from stretto.tabular.ppo.oracle import gain, gradient, occupancy, optimal_gain, return_variance


def test_the_first_world_is_the_one_with_the_known_figures() -> None:
    world = layered(0)
    uniform = world.uniform()
    assert gain(world, uniform) == pytest.approx(2.12196736, abs=5e-9)
    assert optimal_gain(world) == pytest.approx(3.32687053, abs=5e-9)
    assert (gradient(world, uniform) ** 2).sum() == pytest.approx(0.026207311, abs=5e-10)
    assert occupancy(world, uniform).max() == pytest.approx(0.323329, abs=5e-7)


@pytest.mark.parametrize("layers", [2, 4, 8, 16])
def test_every_policy_covers_every_state_of_the_covered_family(layers: int) -> None:
    world = layered(0, layers)
    g = np.random.default_rng(1)
    for _ in range(20):
        policy = np.eye(world.actions)[g.integers(0, world.actions, (layers, world.states))]
        assert occupancy(world, policy).min() >= 0.3 / world.states - 1e-12


def test_the_lock_hides_its_reward_behind_one_sequence() -> None:
    for layers in (2, 3, 5):
        world = lock(layers)
        reached = occupancy(world, world.uniform())[:, 0]
        assert reached == pytest.approx(3.0 ** -np.arange(layers))
        assert gain(world, world.uniform()) == pytest.approx(3.0**-layers)
        assert optimal_gain(world) == 1
    squares = [(gradient(lock(h), lock(h).uniform()) ** 2).sum() for h in (2, 4, 6, 8)]
    assert squares == pytest.approx([1.6e-2, 4e-4, 7.5e-6, 1.2e-7], rel=0.04)


def test_the_environment_plays_the_arrays() -> None:
    world = layered(3, layers=3, states=2, actions=2)
    env = LayeredEnv(world)
    check_env(env, skip_render_check=True)
    g = np.random.default_rng(0)
    returns = []
    env.reset(seed=1)
    for _ in range(4000):
        observation, _ = env.reset()
        total, ended, steps = 0.0, False, 0
        while not ended:
            assert observation // world.states == steps
            observation, reward, ended, truncated, _ = env.step(int(g.integers(2)))
            assert not truncated
            total, steps = total + reward, steps + 1
        assert steps == 3
        returns.append(total)
    exact = gain(world, world.uniform())
    variance = world.start @ return_variance(world, world.uniform())[0]
    assert np.mean(returns) == pytest.approx(exact, abs=4 * (variance / 4000) ** 0.5 + 0.02)
    with pytest.raises(ConfigError, match="reset"):
        env.step(0)
    env.reset()
    with pytest.raises(ConfigError, match="action = 2"):
        env.step(2)


def test_a_gymnasium_table_unrolls_into_layers() -> None:
    mdp = read_mdp(gymnasium.make("FrozenLake-v1", is_slippery=False), gamma=0.9)
    assert optimal_gain(unrolled(mdp, 6)) == 1  # six steps lead from start to goal
    assert optimal_gain(unrolled(mdp, 5)) == 0


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Layered(np.full((1, 2, 2, 2), 0.6), np.zeros((1, 2, 2)), [0.5, 0.5]), "transitions"),
        (lambda: Layered(np.full((1, 2, 2, 3), 1 / 3), np.zeros((1, 2, 2)), [0.5, 0.5]), "transitions"),
        (lambda: Layered(np.full((1, 2, 2, 2), 0.5), np.zeros((1, 2, 3)), [0.5, 0.5]), "rewards"),
        (lambda: Layered(np.full((1, 2, 2, 2), 0.5), np.full((1, 2, 2), np.nan), [0.5, 0.5]), "rewards"),
        (lambda: Layered(np.full((1, 2, 2, 2), 0.5), np.zeros((1, 2, 2)), [0.5, 0.4]), "start"),
        (lambda: Layered(np.full((1, 2, 2, 2), 0.5), np.zeros((1, 2, 2)), [0.5, 0.5], -1), "noise"),
        (lambda: layered(0, layers=0), "layers"),
        (lambda: layered(0, mix=1.5), "mix"),
        (lambda: layered(-1), "seed"),
        (lambda: lock(3, actions=1), "actions"),
        (lambda: unrolled(read_mdp(gymnasium.make("FrozenLake-v1"), 0.9), 0), "layers"),
    ],
)
def test_bad_input_is_one_error_that_names_the_argument(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
