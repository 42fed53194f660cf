"""Reward processes, the three-state chain and step rules."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.chains import stationary, time_reversal
from stretto.tabular.mdp import MDP, policy_value, value_iteration
from stretto.tabular.td.process import RewardProcess, entered, only_entered, with_restarts
from stretto.tabular.td.steps import Steps, constant, decreasing, tuned, untuned
from stretto.tabular.td.three_state import minimax_pair, three_state


def random_process(states: int, seed: int, wide: bool = True) -> RewardProcess:
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(states, states) if wide else states)
    return RewardProcess(rng.dirichlet(np.ones(states), size=states), rewards, 0.85, rng.dirichlet(np.ones(states)))


@pytest.mark.parametrize("process", [three_state(8, 32, 0.1), three_state(16, 64, 0.2, skew=0.4), random_process(6, 1)])
def test_values_agree_with_value_iteration(process: RewardProcess) -> None:
    mdp = MDP(process.transitions[:, None, :], process.mean_rewards[:, None], process.gamma[0])
    values, _ = value_iteration(mdp)
    np.testing.assert_allclose(process.values(), values, rtol=0, atol=1e-12 * max(1, np.abs(values).max()))


def test_a_constant_in_the_rewards_shifts_the_values_by_its_horizon() -> None:
    process = random_process(5, 2)
    shifted = RewardProcess(process.transitions, process.rewards + 0.7, process.gamma, process.start)
    np.testing.assert_allclose(shifted.values(), process.values() + 0.7 * process.horizon, rtol=0, atol=1e-12)
    np.testing.assert_allclose(shifted.noise(), process.noise(), rtol=1e-10)


def test_rewards_by_the_next_state_have_the_values_of_their_mean_but_their_own_noise() -> None:
    process = random_process(5, 3)
    flat = RewardProcess(process.transitions, process.mean_rewards, process.gamma, process.start)
    np.testing.assert_allclose(process.values(), flat.values(), rtol=0, atol=1e-12)
    targets = process.rewards + 0.85 * process.values()
    for s, row in enumerate(process.transitions):
        mean = row @ targets[s]
        assert process.noise()[s] == pytest.approx(row @ (targets[s] - mean) ** 2, rel=1e-12)
    assert np.abs(process.noise() - flat.noise()).max() > 0.1
    np.testing.assert_allclose((process.transitions * process.surprises()).sum(1), 0, atol=1e-12)


def test_restarts_keep_the_episodes_values() -> None:
    transitions = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0]])
    process = RewardProcess(transitions, np.array([1.0, -0.5, 0.0]), 0.9, [0.4, 0.6, 0])
    endless = with_restarts(process, np.array([False, False, True]))
    np.testing.assert_allclose(endless.values(), process.values(), atol=1e-14)
    assert endless.values()[2] == 0
    np.testing.assert_array_equal(endless.transitions[2], [0.4, 0.6, 0])
    assert stationary(endless.transitions).min() > 0
    with pytest.raises(ConfigError, match="with_restarts: ends"):
        with_restarts(process, np.ones(3, bool))


@pytest.mark.parametrize(("horizon", "exit_steps", "mass"), [(4, 16, 0.1), (8, 512, 0.02), (64, 256, 1 / 3)])
def test_the_three_state_chain_is_as_stated(horizon: float, exit_steps: float, mass: float) -> None:
    process = three_state(horizon, exit_steps, mass)
    np.testing.assert_allclose(stationary(process.transitions), [mass, mass, 1 - 2 * mass], rtol=1e-9)
    np.testing.assert_allclose(time_reversal(process.transitions), process.transitions, rtol=0, atol=1e-12)
    assert process.horizon == pytest.approx(horizon)
    np.testing.assert_array_equal(process.start, [0, 0, 1])


def test_its_other_version_is_not_reversible() -> None:
    process = three_state(8, 32, 0.1, skew=0.5, exits=(0.02, 0.05))
    mu = stationary(process.transitions)
    np.testing.assert_allclose(mu @ process.transitions, mu, atol=1e-14)
    assert np.abs(mu[:2] - 0.1).max() > 0.005
    back = time_reversal(process.transitions)
    assert np.abs(back - process.transitions).max() > 1e-3
    np.testing.assert_allclose(stationary(back), mu, rtol=1e-9)  # always kept


def test_the_minimax_pair_is_hard_to_tell_apart_and_far_apart_in_value() -> None:
    for updates in (10**5, 10**7):
        low, high = minimax_pair(8, 32, 0.1, updates)
        gap = np.abs(low.values() - high.values()).max()
        assert 0.1 < gap * np.sqrt(0.1 * updates / 8**3) < 1
        mu = stationary(low.transitions)
        rows = low.transitions * np.log(low.transitions / high.transitions)
        nats = updates * (mu * rows.sum(1)).sum()  # between the laws of the trajectories
        assert nats == pytest.approx(4 / low.transitions[0, 0], rel=0.06)  # whatever T is
    with pytest.raises(ConfigError, match="minimax_pair: updates"):
        minimax_pair(8, 32, 0.1, 80)


def test_steps() -> None:
    assert constant(0.05).at(7) == 0.05
    np.testing.assert_array_equal(decreasing(80).at(np.array([1, 40, 10_000])), [80 / 161, 80 / 200, 80 / 10160])
    assert decreasing(3, t0=0).at(2) == 1
    assert untuned(8, 0.1) == decreasing(80) == Steps(1, 80, 160)
    assert tuned(0.5, 8).at(1) == 0.25 / 64


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: RewardProcess([[0.5, 0.4], [0, 1]], [1, 0], 0.9), r"RewardProcess: transitions\[0\] sums to 0.9"),
        (lambda: RewardProcess([[0.5, 0.5]], [1, 0], 0.9), "RewardProcess: transitions must be"),
        (lambda: RewardProcess(np.eye(2), [1, 0, 2], 0.9), "RewardProcess: rewards"),
        (lambda: RewardProcess(np.eye(2), [1, np.nan], 0.9), "RewardProcess: rewards"),
        (lambda: RewardProcess(np.eye(2), [1, 0], 1.0), "RewardProcess: gamma = 1"),
        (lambda: RewardProcess(np.eye(2), [1, 0], [0.5, 0.5, 0.5]), "RewardProcess: gamma"),
        (lambda: RewardProcess(np.eye(2), [1, 0], 0.9, start=2), "RewardProcess: start = 2"),
        (lambda: RewardProcess(np.eye(2), [1, 0], 0.9, start=[0.5, 0.6]), "RewardProcess: start"),
        (lambda: three_state(1, 32, 0.1), "three_state: horizon"),
        (lambda: three_state(8, 32, 0.4), "three_state: mass"),
        (lambda: three_state(8, 0.5, 0.1), "three_state: exit_steps"),
        (lambda: three_state(2, 1.5, 0.1), "three_state: a state would be left"),
        (lambda: three_state(8, 32, 0.1, exits=(-0.1, 0.1)), r"three_state: exits\[0\]"),
        (lambda: three_state(8, 32, 0.1, exits=(0.1,)), "three_state: exits"),  # type: ignore[arg-type]
        (lambda: three_state(8, 32, 0.1, skew=0.7), "three_state: skew"),
        (lambda: minimax_pair(8, 32, None, 100), "minimax_pair: mass"),  # type: ignore[arg-type]
        (lambda: with_restarts(three_state(8, 32, 0.1), [[True], [True, False]]), "with_restarts: ends"),
        (lambda: constant(0), "Steps: top"),
        (lambda: constant(1.5), "Steps: top"),
        (lambda: decreasing(-1), "decreasing: h"),
        (lambda: decreasing(4, t0=-1), "decreasing: t0"),
        (lambda: untuned(8, 0), "untuned: least_mass"),
        (lambda: tuned(2, 8), "tuned: eps"),
    ],
)
def test_bad_arguments_are_named(call, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=said):
        call()


def test_a_policy_in_an_mdp_keeps_its_first_state() -> None:
    g = np.random.default_rng(0)
    mdp = MDP(g.dirichlet(np.ones(3), (3, 2)), g.random((3, 2)), 0.8, [0.0, 0.0, 1.0])
    process = RewardProcess.of(mdp, [1, 0, 1])
    np.testing.assert_array_equal(process.start, mdp.start)
    np.testing.assert_allclose(process.values(), policy_value(mdp, [1, 0, 1]), atol=1e-13)


@pytest.mark.parametrize("by_next_state", [False, True])
def test_states_that_are_never_entered_are_dropped_and_the_others_keep_their_values(by_next_state: bool) -> None:
    transitions = np.array([[0.5, 0.5, 0.0], [0.1, 0.9, 0.0], [0.3, 0.3, 0.4]])
    rewards = np.arange(9.0).reshape(3, 3) if by_next_state else [1.0, 2.0, 3.0]
    process = RewardProcess(transitions, rewards, [0.5, 0.9, 0.3], start=1)
    inner, kept = only_entered(process)
    assert kept.tolist() == [0, 1]
    assert entered(process).tolist() == [True, True, False]
    np.testing.assert_allclose(inner.values(), process.values()[kept], atol=1e-13)
    assert inner.start.tolist() == [0.0, 1.0]
    assert (stationary(inner.transitions) > 0).all()
