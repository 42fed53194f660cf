"""The tactical learner on Level-Based Foraging, an environment that isn't ours."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from stretto.games.foraging.outside import nearest_food, play
from stretto.games.foraging.tactical import TacticalLearner
from stretto.kernel.errors import ConfigError

lbforaging = pytest.importorskip("lbforaging")
NAME = "Foraging-8x8-2p-2f-v3"


def world() -> Any:
    return gymnasium.make(NAME, disable_env_checker=True)  # the checker warns of rewards that are lists


def improvement(seed: int, episodes: int, judged: int = 30) -> tuple[float, float]:
    """Mean reward an episode, on the same held-out starts, before any training (ties at random: a random player) and
    after."""
    env, learners = world(), [TacticalLearner(6, seed=2 * seed + i) for i in range(2)]
    held_out = 1_000_000 + 1000 * seed
    before = play(env, learners, judged, nearest_food, learn=False, seed=held_out)
    assert not any(learner.table for learner in learners)
    play(env, learners, episodes, nearest_food, seed=1000 * seed)
    after = play(env, learners, judged, nearest_food, learn=False, seed=held_out)
    return float(before.mean()), float(after.mean())


def test_two_tactical_learners_train_on_it() -> None:
    found = np.array([improvement(seed, episodes=100) for seed in range(2)])
    assert (found[:, 1] > found[:, 0] + 0.05).all(), found
    assert found[:, 1].mean() >= found[:, 0].mean() + 0.15, found


@pytest.mark.slow
def test_two_tactical_learners_gather_twice_as_much_after_longer_training() -> None:
    found = np.array([improvement(seed, episodes=600, judged=100) for seed in range(8)])
    assert (found[:, 1] > found[:, 0] + 0.1).all(), found
    assert found[:, 1].mean() >= 2 * found[:, 0].mean(), found


def test_the_view_names_the_nearest_food_that_one_can_lift() -> None:
    def see(*foods: tuple[int, int, int], me: tuple[int, int, int], other: tuple[int, int, int]) -> Any:
        return nearest_food(np.array([*foods[0], *foods[1], *me, *other], np.float32))

    gone = (-1, -1, 0)
    assert see((2, 5, 2), gone, me=(2, 4, 1), other=(7, 7, 1)) == (0, 1, True, False)
    assert see((2, 5, 2), (6, 4, 1), me=(2, 4, 1), other=(2, 6, 1)) == (2, 0, False, False)  # 4 rows are cut at 2
    assert see((2, 5, 2), gone, me=(4, 4, 2), other=(2, 6, 1)) == (-2, 1, False, True)
    assert see(gone, gone, me=(4, 4, 2), other=(2, 6, 1)) is None


def test_learners_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"play: learners have \[6\] actions but the environment's agents have \[6, 6\]"
    ):
        play(world(), [TacticalLearner(6)], 1, nearest_food)
    with pytest.raises(ConfigError, match="play: episodes = 0"):
        play(world(), [TacticalLearner(6)] * 2, 0, nearest_food)
    with pytest.raises(ConfigError, match="nearest_food: observation has shape"):
        nearest_food(np.zeros(9))
    with pytest.raises(ConfigError, match=r"name both, as partial\(nearest_food, foods=3, players=3\)"):
        nearest_food(np.zeros(18))


def test_other_numbers_of_foods_and_players_play_too() -> None:
    env = gymnasium.make("Foraging-10x10-3p-3f-v3", disable_env_checker=True)
    learners = [TacticalLearner(6, seed=i) for i in range(3)]
    assert play(env, learners, 3, partial(nearest_food, foods=3, players=3)).shape == (3,)
    vector = np.array([2, 5, 1, 2, 4, 1, 7, 7, 1, 2, 6, 1])  # one food, three players: the last one stands beside it
    assert nearest_food(vector, foods=1, players=3) == (0, 1, False, True)
