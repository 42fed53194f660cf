"""Arrays as Gymnasium environments, and Gymnasium's own tables as arrays."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from stretto.kernel.errors import ConfigError
from stretto.tabular.gym import TabularEnv, read_mdp
from stretto.tabular.mdp import MDP, absorbing, deterministic, policy_iteration, policy_value


def _mdp() -> MDP:
    g = np.random.default_rng(0)
    return MDP(g.dirichlet(np.ones(3), size=(3, 2)), g.random((3, 2)), 0.9, [1, 0, 0])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_environment_of_arrays_passes_the_checker_and_follows_its_law() -> None:
    check_env(TabularEnv(_mdp(), 0.1, horizon=5))
    env = TabularEnv(_mdp(), noise=0.5)
    state, _ = env.reset(seed=1)
    assert state == 0
    counts, paid, after = np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2, 3))
    g = np.random.default_rng(2)
    for _ in range(20_000):
        action = int(g.integers(2))
        following, reward, terminated, truncated, _ = env.step(action)
        assert (terminated, truncated) == (False, False)
        counts[state, action] += 1
        paid[state, action] += reward
        after[state, action, following] += 1
        state = following
    error = 4 / np.sqrt(counts)
    assert (np.abs(paid / counts - env.mdp.rewards) < 0.5 * error).all()
    assert (np.abs(after / counts[..., None] - env.mdp.transitions) < 0.5 * error[..., None]).all()


def test_resets_to_a_state_and_refuses_what_does_not_exist() -> None:
    env = TabularEnv(_mdp(), horizon=1)
    with pytest.raises(ConfigError, match="reset"):
        env.step(0)
    assert env.reset(options={"state": 2})[0] == 2
    with pytest.raises(ConfigError, match="action = 2 must be a whole number from 0 to 1"):
        env.step(2)
    assert env.step(1)[3] is True
    for state in (3, 0.5, "a", float("nan")):
        with pytest.raises(ConfigError, match=f"state = {state}"):
            env.reset(options={"state": state})


@pytest.mark.parametrize("name", ["FrozenLake-v1", "Taxi-v4", "CliffWalking-v1"])
def test_published_tables_give_the_process_that_the_environment_plays(name: str) -> None:
    env = gymnasium.make(name)
    mdp = read_mdp(env, 0.95)
    values, choice = policy_iteration(mdp)
    policy = deterministic(choice, mdp.actions)
    assert values[-1] == 0
    returns = []
    for seed in range(300):
        state, _ = env.reset(seed=seed)
        total, factor, over = 0.0, 1.0, False
        while not over and factor > 1e-4:
            state, reward, terminated, truncated, _ = env.step(int(choice[state]))
            total, factor, over = total + factor * float(reward), 0.95 * factor, terminated or truncated
        returns.append(total)
    expected = mdp.start @ policy_value(mdp, policy)
    assert np.mean(returns) == pytest.approx(expected, abs=4 * np.std(returns) / np.sqrt(300) + 2e-3)


def test_an_environment_without_a_table_is_refused() -> None:
    with pytest.raises(ConfigError, match="read_mdp: env CartPoleEnv publishes no table"):
        read_mdp(gymnasium.make("CartPole-v1"), 0.9)


def test_a_table_that_was_read_becomes_an_episodic_environment_again() -> None:
    mdp = read_mdp(gymnasium.make("FrozenLake-v1", is_slippery=False), 0.9)
    ends = absorbing(mdp)
    assert ends[-1], "where read_mdp lets episodes end"
    env, best = TabularEnv(mdp, ends=ends), policy_iteration(mdp)[1]
    state, _ = env.reset(seed=0)
    rewards, terminated = [], False
    while not terminated:
        state, reward, terminated, _, _ = env.step(int(best[state]))
        rewards.append(reward)
    assert rewards == [0.0] * 5 + [1.0], "six steps on dry ground lead to the goal, and end there"
    with pytest.raises(ConfigError, match=r"call reset\(\) first"):
        env.step(0)
    with pytest.raises(ConfigError, match="ends must mark states"):
        TabularEnv(mdp, ends=[0, 1])
