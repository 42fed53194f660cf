"""TD on environments from outside: through their published table, and step by step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.chains import stationary
from stretto.tabular.gym import read_mdp
from stretto.tabular.mdp import MDP, deterministic, policy_iteration, policy_value, uniform_policy
from stretto.tabular.td.kernel import td
from stretto.tabular.td.laws import late_covariance
from stretto.tabular.td.online import TD
from stretto.tabular.td.process import RewardProcess, entered, only_entered, with_restarts
from stretto.tabular.td.steps import constant, decreasing, untuned


def mixed(mdp: MDP) -> np.ndarray:
    """The best policy in nine steps of ten, a uniform action else: episodes that end, and all actions tried."""
    return 0.9 * deterministic(policy_iteration(mdp)[1], mdp.actions) + 0.1 * uniform_policy(mdp)


def episodes(mdp: MDP, policy: np.ndarray) -> RewardProcess:
    """The policy's episodes, one after the other; ``read_mdp`` puts the end of an episode last."""
    return with_restarts(RewardProcess.of(mdp, policy), np.arange(mdp.states) == mdp.states - 1)


def test_frozen_lake_through_its_table() -> None:
    mdp = read_mdp(gymnasium.make("FrozenLake-v1"), 0.9)
    policy = uniform_policy(mdp)
    process = episodes(mdp, policy)
    truth = policy_value(mdp, policy)
    np.testing.assert_allclose(process.values(), truth, atol=1e-13)
    inner, seen = only_entered(process)
    steps = untuned(10, stationary(inner.transitions).min())
    run = td(inner, steps, np.arange(16), [2_000_000])
    error = run.values[:, 0] - truth[seen]
    spread = np.sqrt(np.diag(late_covariance(inner, steps.h)) / 2_000_000)
    assert np.abs(error).max() < 0.02 * truth.max()
    assert (error.std(0, ddof=1) <= spread * (1 + 4 * np.sqrt(1 / 32)) + 1e-12).all()


def test_taxi_through_its_table() -> None:
    mdp = read_mdp(gymnasium.make("Taxi-v4"), 0.9)
    policy = mixed(mdp)
    process = episodes(mdp, policy)
    truth, seen = policy_value(mdp, policy), entered(process)
    assert 300 < seen.sum() < mdp.states  # a delivered passenger's states end the episode
    np.testing.assert_allclose(process.values(), truth, atol=1e-10)
    run = td(process, decreasing(3000), np.arange(4), [2_000_000])
    error = np.abs(run.values[:, 0, seen] - truth[seen]).mean(0)
    weights = stationary(process.transitions[np.ix_(seen, seen)])
    assert error @ weights < 0.01 * np.abs(truth[seen]) @ weights
    assert error[weights > 1e-3].max() < 0.02 * np.abs(truth[seen]).max()
    assert (run.values[:, 0, ~seen] == 0).all()


def learn(env: Any, policy: np.ndarray, learner: TD, updates: int) -> None:
    """The usual loop of a Gymnasium environment."""
    rng = np.random.default_rng(0)
    ways = [np.cumsum(row) for row in policy]
    state, _ = env.reset(seed=0)
    for u in rng.random(updates):
        action = min(int(np.searchsorted(ways[state], u, side="right")), len(ways[state]) - 1)
        after, reward, terminated, truncated, _ = env.step(action)
        learner.update(state, float(reward), after, terminated)
        state = env.reset()[0] if terminated or truncated else after


def test_frozen_lake_step_by_step() -> None:
    env = gymnasium.make("FrozenLake-v1")
    mdp = read_mdp(env, 0.9)
    policy = uniform_policy(mdp)
    learner = TD(16, 0.9, decreasing(300))
    learn(env, policy, learner, 30_000)
    truth = policy_value(mdp, policy)[:16]
    assert learner.updates == 30_000
    assert np.abs(learner.values - truth).max() < 0.25 * truth.max()


def test_taxi_step_by_step() -> None:
    env = gymnasium.make("Taxi-v4")
    mdp = read_mdp(env, 0.9)
    policy = mixed(mdp)
    learner = TD(500, 0.9, constant(0.1))
    learn(env, policy, learner, 40_000)
    process = episodes(mdp, policy)
    truth, seen = policy_value(mdp, policy), entered(process)
    weights = np.zeros(mdp.states)
    weights[seen] = stationary(process.transitions[np.ix_(seen, seen)])
    gap, before = (weights[:500] @ np.abs(v - truth[:500]) for v in (learner.values, np.zeros(500)))
    assert gap < 0.25 * before


def test_an_episodes_end_is_worth_nothing_and_a_truncated_one_goes_on() -> None:
    learner = TD(2, 0.5, constant(1.0), values=[0.0, 4.0])
    assert learner.update(0, 1.0, 1, done=True) == 1.0
    assert learner.update(0, 1.0, 1) == 2.0
    np.testing.assert_array_equal(learner.values, [3.0, 4.0])


def test_the_learner_names_what_it_refuses() -> None:
    for call, said in (
        (lambda: TD(0, 0.9, constant(0.1)), "TD: states"),
        (lambda: TD(3, 1.0, constant(0.1)), "TD: gamma = 1"),
        (lambda: TD(3, [0.5, 0.5], constant(0.1)), "TD: gamma"),
        (lambda: TD(3, 0.9, constant(0.1), values=[1.0]), "TD: values"),
        (lambda: TD(3, 0.9, 0.1), "TD: steps"),  # type: ignore[arg-type]
        (lambda: TD(3, 0.9, constant(0.1)).update(3, 0.0, 0), "TD.update: state = 3"),
        (lambda: TD(3, 0.9, constant(0.1)).update(0.5, 0.0, 0), "TD.update: state = 0.5"),  # type: ignore[arg-type]
        (lambda: TD(3, 0.9, constant(0.1)).update(0, 0.0, -1), "TD.update: after = -1"),
        (lambda: TD(3, 0.9, constant(0.1)).update(0, float("nan"), 1), "TD.update: reward"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()
