"""Exact values, best policies and occupancies of decision processes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError
from stretto.tabular.mdp import (
    MDP,
    action_values,
    chain,
    deterministic,
    occupancy,
    policy_iteration,
    policy_value,
    soft_value_iteration,
    uniform_policy,
    value_iteration,
)


def _random(seed: int, states: int = 4, actions: int = 3, gamma: float = 0.9) -> MDP:
    g = np.random.default_rng(seed)
    return MDP(g.dirichlet(np.ones(states), size=(states, actions)), g.normal(size=(states, actions)), gamma)


@given(st.integers(0, 30))
def test_best_policies_agree_with_enumeration(seed: int) -> None:
    mdp = _random(seed, 3, 2)
    best = np.max([policy_value(mdp, deterministic(np.array(c), 2)) for c in itertools.product(range(2), repeat=3)], 0)
    for found, choice in (value_iteration(mdp), policy_iteration(mdp)):
        assert np.abs(found - best).max() < 1e-11
        assert np.abs(policy_value(mdp, deterministic(choice, 2)) - best).max() < 1e-11


def test_values_solve_bellman_and_occupancy_weighs_rewards() -> None:
    mdp = _random(1)
    policy = np.random.default_rng(2).dirichlet(np.ones(3), size=4)
    values = policy_value(mdp, policy)
    assert np.abs((policy * action_values(mdp, values)).sum(1) - values).max() < 1e-12
    d = occupancy(mdp, policy)
    assert d.sum() == pytest.approx(1, abs=1e-13)
    assert d @ chain(mdp, policy)[1] / (1 - mdp.gamma) == pytest.approx(mdp.start @ values, abs=1e-12)


def test_soft_values_tend_to_hard_ones_and_solve_their_own_equation() -> None:
    mdp = _random(3)
    hard, _ = value_iteration(mdp)
    gaps = []
    for temp in (1.0, 0.1, 0.01):
        values, policy = soft_value_iteration(mdp, temp)
        q = action_values(mdp, values)
        top = q.max(1)
        soft = top + temp * np.log(np.exp((q - top[:, None]) / temp).sum(1))
        assert np.abs(soft - values).max() < 1e-10
        assert np.abs(policy - np.exp((q - values[:, None]) / temp)).max() < 1e-9
        gaps.append(np.abs(values - hard).max())
        assert gaps[-1] <= temp * np.log(3) / (1 - mdp.gamma)
    assert gaps[0] > gaps[1] > gaps[2]


def test_ties_neither_cycle_nor_move_the_choice() -> None:
    mdp = MDP(np.full((3, 4, 3), 1 / 3), np.ones((3, 4)), 0.99)
    values, choice = policy_iteration(mdp)
    assert values == pytest.approx(100)
    assert choice.tolist() == [0, 0, 0]
    assert value_iteration(mdp)[1].tolist() == [0, 0, 0]


def test_what_does_not_fit_is_named() -> None:
    good: dict[str, Any] = {"transitions": np.full((2, 2, 2), 0.5), "rewards": np.zeros((2, 2)), "gamma": 0.5}
    bad = {
        r"MDP: transitions\[0, 1\] sums to 0.9": {"transitions": [[[1, 0], [0.9, 0]], [[1, 0], [0, 1]]]},
        r"MDP: transitions must be \[S,A,S\]": {"transitions": np.full((2, 2, 3), 1 / 3)},
        r"MDP: rewards has shape": {"rewards": np.zeros((2, 3))},
        "MDP: gamma = 1.0 must be": {"gamma": 1.0},
        "MDP: start sums to 0": {"start": [0, 0]},
    }
    for said, change in bad.items():
        with pytest.raises(ConfigError, match=said):
            MDP(**(good | change))
    mdp = MDP(**good)
    with pytest.raises(ConfigError, match=r"chain: policy\[0\] sums to"):
        policy_value(mdp, np.ones((2, 2)))
    with pytest.raises(ConfigError, match="soft_value_iteration: temp = 0"):
        soft_value_iteration(mdp, 0)
    with pytest.raises(ConfigError, match="soft_value_iteration: tolerance = -1"):
        soft_value_iteration(mdp, 0.1, -1)
    for choice in ([2, 0], [-1, 0], [0.5, 0], 0):
        with pytest.raises(ConfigError, match="deterministic: choice"):
            deterministic(choice, 2)  # type: ignore[arg-type]
    assert uniform_policy(mdp).tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("seed", range(3))
def test_another_library_agrees(seed: int) -> None:
    from quantecon.markov import DiscreteDP

    mdp = _random(seed, 6, 4)
    found = DiscreteDP(mdp.rewards, mdp.transitions, mdp.gamma).solve(method="policy_iteration")
    values, choice = policy_iteration(mdp)
    assert np.abs(found.v - values).max() < 1e-11
    assert found.sigma.tolist() == choice.tolist()


def test_a_policy_may_be_an_actions_number_for_each_state() -> None:
    mdp = _random(3)
    choice = policy_iteration(mdp)[1]
    np.testing.assert_array_equal(policy_value(mdp, choice), policy_value(mdp, deterministic(choice, mdp.actions)))
    for wrong in (choice[:-1], np.full(mdp.states, mdp.actions), np.full(mdp.states, 0.5)):
        with pytest.raises(ConfigError, match=r"policy must hold probabilities \[.*\], or an action's number from 0"):
            policy_value(mdp, wrong)
