"""The parts of the first epoch's error add up, and are what a large sample shows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.ppo import Layered, layered
from stretto.tabular.ppo import reference as plain
from stretto.tabular.ppo.coupling import advantage_law, clipped_share, first_epoch, split_update
from stretto.tabular.ppo.oracle import expected_update, gradient, mean_advantages, values
from stretto.tabular.softmax import softmax

WORLD = layered(1, layers=3, states=3, actions=2)
G = np.random.default_rng(0)
THETA = G.normal(size=WORLD.rewards.shape)
OLD = THETA + 0.3 * G.normal(size=THETA.shape)
CRITIC = G.normal(size=WORLD.rewards.shape[:2])


def test_the_law_of_advantages_has_the_mean_of_the_recursion() -> None:
    policy = softmax(OLD)
    means = mean_advantages(WORLD, policy, CRITIC, 0.9)
    for h, (chance, centre, deviation) in enumerate(advantage_law(WORLD, policy, CRITIC, 0.9)):
        assert chance.sum(-1) == pytest.approx(1)
        assert (chance * centre).sum(-1) == pytest.approx(means[h], abs=1e-12)
        assert deviation == pytest.approx(0.5 * np.sqrt(sum(0.81**k for k in range(3 - h))))


def test_without_a_clip_the_mean_is_the_recursion_s() -> None:
    mean, _ = first_epoch(WORLD, THETA, OLD, CRITIC, 0.9, 1e9)
    exact = expected_update(WORLD, softmax(THETA), CRITIC, 0.9, softmax(OLD))
    assert mean == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_a_clipped_sample_has_the_mean_and_the_variance_of_the_split(noise: float) -> None:
    world = Layered(WORLD.transitions, WORLD.rewards, WORLD.start, noise)
    split = split_update(world, THETA, OLD, CRITIC, 0.9, 0.1, 500)
    expected = split.gradient + split.stale + split.critic + split.clip
    pi, sampled = plain.softmax_policy(THETA), plain.softmax_policy(OLD)
    squares, total = [], np.zeros(THETA.shape)
    for part in range(24):
        batch = plain.sample(world, sampled, CRITIC, 0.9, 5, 500 * part, 500)
        found = plain.actor_move(batch, sampled, pi, 0.1) / 500
        total += found / 24
        squares.append(((found - expected) ** 2).sum())
    assert np.mean(squares) == pytest.approx(split.batch, abs=4 * np.std(squares, ddof=1) / 24**0.5)
    assert ((total - expected) ** 2).sum() < 4 * split.batch / 24
    assert split.squares["clip"] > 10 * 4 * split.batch / 24  # so the clip's bias is really seen


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_as_many_samples_are_clipped_as_the_law_of_advantages_says(noise: float) -> None:
    world = Layered(WORLD.transitions, WORLD.rewards, WORLD.start, noise)
    pi, sampled = plain.softmax_policy(THETA), plain.softmax_policy(OLD)
    batch = plain.sample(world, sampled, CRITIC, 0.9, 5, 0, 4000)
    at = np.arange(3), batch.states[:, :3], batch.actions
    ratio = pi[at] / sampled[at]
    silenced = np.where(batch.advantages > 0, ratio > 1.1, ratio < 0.9).mean(1)
    share = clipped_share(world, THETA, OLD, CRITIC, 0.9, 0.1)
    assert silenced.mean() == pytest.approx(share, abs=4 * silenced.std() / 4000**0.5)
    assert 0.05 < share < 0.2
    assert clipped_share(world, THETA, THETA, CRITIC, 0.9, 0.1) == 0


def test_each_part_is_zero_without_its_cause() -> None:
    policy = softmax(THETA)
    nothing = split_update(WORLD, THETA, THETA, values(WORLD, policy)[1], 0.9, 0.2, 8)
    assert nothing.gradient == pytest.approx(gradient(WORLD, policy), abs=1e-15)
    for part in (nothing.stale, nothing.critic, nothing.clip):
        assert np.abs(part).max() < 1e-14
    assert np.abs(split_update(WORLD, THETA, THETA, CRITIC, 1.0, 0.2, 8).critic).max() < 1e-14  # full traces
    assert np.abs(split_update(WORLD, THETA, THETA, CRITIC, 0.5, 0.2, 8).critic).max() > 1e-3
    assert nothing.batch == pytest.approx(
        split_update(WORLD, THETA, THETA, values(WORLD, policy)[1], 0.9, 0.2, 1).batch / 8
    )


def test_bad_input_is_one_error_that_names_the_argument() -> None:
    with pytest.raises(ConfigError, match="world"):
        first_epoch(layered(0, layers=8), *np.zeros((2, 8, 4, 3)), np.zeros((8, 4)), 0.9, 0.2)
    with pytest.raises(ConfigError, match="world"):
        first_epoch(layered(0, layers=3000), *np.zeros((2, 3000, 4, 3)), np.zeros((3000, 4)), 0.9, 0.2)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"clip": 0}, "clip"),
        ({"lam": 2}, "lam"),
        ({"episodes": 0}, "episodes"),
        ({"theta": THETA[0]}, "theta"),
        ({"old_critic": CRITIC * np.inf}, "old_critic"),
    ]
    for change, named in changes:
        given = {"theta": THETA, "old_theta": OLD, "old_critic": CRITIC, "lam": 0.9, "clip": 0.2, "episodes": 8}
        with pytest.raises(ConfigError, match=named):
            split_update(WORLD, **{**given, **change})  # type: ignore[arg-type]
