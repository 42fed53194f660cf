"""The compiled loop against the plain one, bit for bit, and the rules of an iteration one by one."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives.temporal import discounted_returns, gae
from stretto.tabular.delay import DelayLine, Delays
from stretto.tabular.ppo import Lateness, Layered, TabularPPO, kernel, layered, ppo_tabular
from stretto.tabular.ppo import oracle as exact
from stretto.tabular.ppo import reference as plain
from stretto.tabular.ppo.learn import latest_reads
from stretto.tabular.softmax import softmax

WORLD = layered(0)
LATE = {
    "none": None,
    "constant": Lateness(Delays("constant", 3)),
    "random": Lateness(Delays("geometric", 2.0), most=4),
    "poisson": Lateness(Delays("poisson", 1.5, seed=9)),
}


@pytest.mark.parametrize("late", LATE)
@pytest.mark.parametrize("options", [TabularPPO(), TabularPPO(3, 4, 0.05, 0.8, 3.0, 0.7, 0.5, 0.3, kl_stop=0.002)])
def test_the_kernel_is_the_plain_loop_to_the_bit(late: str, options: TabularPPO) -> None:
    runs = ppo_tabular(WORLD, options, 30, [3, 11], LATE[late])
    for i, seed in enumerate((3, 11)):
        steps = list(plain.ppo_reference(WORLD, options, 30, seed, LATE[late]))
        assert np.array_equal(steps[-1][0], runs.theta[i])
        assert np.array_equal(steps[-1][1], runs.critic[i])
        lateness = LATE[late]
        read = 30 if lateness is None else latest_reads(lateness.of_run(seed, 31))[30]
        assert np.array_equal(steps[read - 1][0], runs.old_theta[i])
        assert np.array_equal(steps[read - 1][1], runs.old_critic[i])
        assert [sum(used > e for _, _, used in steps) for e in range(options.epochs)] == runs.epochs[i].tolist()
        for t in (1, 7, 30):
            policy = softmax(steps[t - 1][0])
            assert runs.gain[i, t] == pytest.approx(exact.gain(WORLD, policy), rel=1e-12)
            assert runs.slope[i, t] == pytest.approx((exact.gradient(WORLD, policy) ** 2).sum(), rel=1e-9)
            assert runs.error[i, t] == pytest.approx(exact.critic_error(WORLD, policy, steps[t - 1][1]), rel=1e-9)


def test_another_kind_of_world_agrees_as_well() -> None:
    g = np.random.default_rng(5)
    transitions = g.dirichlet(np.full(7, 0.2), size=(5, 7, 2))
    transitions[:, 0] = np.eye(7)[3]  # certain moves among them
    world = Layered(transitions, g.normal(size=(5, 7, 2)), np.eye(7)[2], noise=0.0)
    runs = ppo_tabular(world, TabularPPO(episodes=4), 40, [0])
    *_, (theta, critic, _) = plain.ppo_reference(world, TabularPPO(episodes=4), 40, 0)
    assert np.array_equal(theta, runs.theta[0])
    assert np.array_equal(critic, runs.critic[0])


def test_results_depend_on_seeds_alone_not_on_threads_or_company() -> None:
    threads = numba.get_num_threads()
    together = ppo_tabular(WORLD, TabularPPO(), 50, range(5), LATE["random"])
    numba.set_num_threads(1)
    try:
        single = ppo_tabular(WORLD, TabularPPO(), 50, range(5), LATE["random"])
    finally:
        numba.set_num_threads(threads)
    assert np.array_equal(together.theta, single.theta)
    assert np.array_equal(together.error, single.error)
    alone = ppo_tabular(WORLD, TabularPPO(), 50, [3], LATE["random"])
    assert np.array_equal(together.theta[3], alone.theta[0])
    assert not np.array_equal(together.theta[2], together.theta[3])


@pytest.mark.parametrize("late", ["constant", "random", "poisson"])
def test_reads_are_those_of_the_delay_line(late: str) -> None:
    lateness = LATE[late]
    assert lateness is not None
    delays = lateness.of_run(2, 300)
    line: DelayLine[int] = DelayLine(initial=0)
    expected = []
    for t in range(300):
        line.push(t, t, int(delays[t]))
        expected.append(line.latest(t))
    assert latest_reads(delays).tolist() == expected
    assert lateness.most is None or max(t - j for t, j in enumerate(expected)) <= lateness.most
    assert late == "constant" or not np.array_equal(delays, lateness.of_run(3, 300))


def test_a_delay_beyond_all_time_reads_the_first_pair() -> None:
    never = ppo_tabular(WORLD, TabularPPO(), 20, [1], Lateness(Delays("constant", 1e300)))
    assert not never.old_theta.any()
    assert not never.old_critic.any()
    assert never.theta.any()


def test_advantages_and_returns_are_those_of_the_objectives() -> None:
    g = np.random.default_rng(0)
    critic = g.normal(size=WORLD.rewards.shape[:2])
    batch = plain.sample(WORLD, WORLD.uniform(), critic, 0.9, 4, 0, 20)
    rows = TokenBatch(
        mask=torch.ones(20, WORLD.layers, dtype=torch.bool),
        rewards=torch.from_numpy(batch.rewards),
        values=torch.from_numpy(critic[np.arange(WORLD.layers), batch.states[:, :-1]]),
    )
    assert batch.advantages == pytest.approx(gae(rows, 1.0, 0.9).numpy(), abs=1e-12)
    assert batch.returns == pytest.approx(discounted_returns(rows, 1.0).numpy(), abs=1e-12)
    padded, new, advantages = np.vstack([critic, np.zeros(WORLD.states)]), np.zeros((5, 4)), np.empty((20, 4))
    kernel._critic((batch.states, batch.actions, batch.rewards), 0.9, 1.0, padded, new, advantages)
    assert np.array_equal(advantages, batch.advantages)
    assert np.array_equal(new[:-1], plain.critic_move(batch, critic) / 20)
    assert not new[-1].any()


def test_the_mean_of_a_first_step_is_the_expected_update() -> None:
    """One iteration of many episodes with unit steps, from any policy and critic."""
    g = np.random.default_rng(1)
    theta, critic = g.normal(size=WORLD.rewards.shape), g.normal(size=WORLD.rewards.shape[:2])
    options = TabularPPO(episodes=20_000, epochs=1, lam=0.7, actor_step=1)
    runs = ppo_tabular(WORLD, options, 1, range(8), theta=theta, critic=critic)
    transitions = runs.theta - theta
    expected = exact.expected_update(WORLD, softmax(theta), critic, 0.7)
    error = transitions.std(0, ddof=1) / 8**0.5
    assert (np.abs(transitions.mean(0) - expected) / error).max() < 6  # 48 entries, 7 degrees of freedom
    assert np.sqrt((((transitions.mean(0) - expected) / error) ** 2).mean()) < 1.6
    gradient = exact.gradient(WORLD, softmax(theta))
    assert (np.abs(transitions.mean(0) - gradient) / error).max() > 10  # the wrong critic shows


def test_fresh_data_is_never_clipped_in_the_first_epoch() -> None:
    runs = ppo_tabular(WORLD, TabularPPO(epochs=3, clip=1e-12), 200, range(3))
    assert (runs.clipped[:, 0] == 0).all()
    assert (runs.clipped[:, 1] > 0.1).all()  # while any movement at all is clipped in the next
    stale = ppo_tabular(WORLD, TabularPPO(epochs=3, clip=1e-12), 200, range(3), LATE["constant"])
    assert (stale.clipped[:, 0] > 0.1).all()


@pytest.mark.parametrize("advantage", [1.5, -1.5])
@pytest.mark.parametrize("ratio", [1.3, 0.7])
def test_the_gradient_vanishes_exactly_on_the_outward_side(advantage: float, ratio: float) -> None:
    sampled, pi = np.array([[[0.5, 0.5]]]), np.array([[[0.5 * ratio, 1 - 0.5 * ratio]]])
    states, actions, numbers = np.zeros((1, 2), np.int64), np.zeros((1, 1), np.int64), np.array([[advantage]])
    theta, move = np.zeros((1, 1, 2)), np.empty((1, 1, 2))
    clipped = kernel._epoch((states, actions, numbers), numbers, sampled, pi, 0.2, 1.0, theta, move)
    batch = plain.Batch(states, actions, numbers, numbers, numbers)
    assert np.array_equal(theta, plain.actor_move(batch, sampled, pi, 0.2))
    outward = (advantage > 0) == (ratio > 1)
    assert clipped == outward
    expected = np.zeros(2) if outward else advantage * ratio * (np.array([1.0, 0.0]) - pi[0, 0])
    assert theta[0, 0] == pytest.approx(expected, abs=1e-15)
    assert outward == (not theta.any())


def test_epochs_with_a_huge_clip_are_plain_importance_weighted_steps() -> None:
    options = TabularPPO(epochs=4, clip=1e9, actor_step=0.5)
    runs = ppo_tabular(WORLD, options, 1, [6])
    batch = plain.sample(WORLD, WORLD.uniform(), np.zeros((4, 4)), options.lam, 6, 0, 8)
    theta = np.zeros(WORLD.rewards.shape)
    layer = np.arange(4)
    for _ in range(4):
        pi = softmax(theta)
        move = np.zeros(theta.shape)
        for i in range(8):
            s, a = batch.states[i, :-1], batch.actions[i]
            weight = batch.advantages[i] * pi[layer, s, a] / (1 / 3)
            move[layer, s] += weight[:, None] * (np.eye(3)[a] - pi[layer, s])
        theta += 0.5 * move / 8
    assert runs.theta[0] == pytest.approx(theta, abs=1e-12)


def test_a_kl_limit_of_zero_allows_exactly_one_epoch_of_fresh_data() -> None:
    runs = ppo_tabular(WORLD, TabularPPO(epochs=5, kl_stop=0), 60, range(3))
    assert runs.epochs.tolist() == [[60, 0, 0, 0, 0]] * 3
    once = ppo_tabular(WORLD, TabularPPO(epochs=1), 60, range(3))
    assert np.array_equal(runs.theta, once.theta)


def test_a_policy_that_has_underflowed_is_infinitely_far() -> None:
    options = TabularPPO(epochs=3, actor_step=1e5, kl_stop=1e3)
    runs = ppo_tabular(WORLD, options, 1, [0])
    *_, (theta, _, used) = plain.ppo_reference(WORLD, options, 1, 0)
    assert (plain.softmax_policy(theta) == 0).any()
    assert np.array_equal(theta, runs.theta[0])
    assert used == 1
    assert runs.epochs.tolist() == [[1, 0, 0]]


@pytest.mark.parametrize("options", [TabularPPO(epochs=0), TabularPPO(epochs=6), TabularPPO(epochs=6, kl_stop=0)])
def test_fresh_episodes_are_counted_whatever_their_reuse(options: TabularPPO) -> None:
    assert ppo_tabular(WORLD, options, 25, range(3)).fresh.tolist() == [200] * 3


def test_no_epochs_leave_the_actor_alone() -> None:
    runs = ppo_tabular(WORLD, TabularPPO(epochs=0), 100, [0])
    assert not runs.theta.any()
    assert runs.error[0, -1] < runs.error[0, 0] / 5


def test_a_run_ends_at_its_goal() -> None:
    runs = ppo_tabular(WORLD, TabularPPO(), 2000, range(4), every=5, goal=2.6)
    assert (runs.iterations < 2000).all()
    assert (runs.iterations % 5 == 0).all()
    for run, done in enumerate(runs.iterations // 5):
        assert runs.gain[run, done] >= 2.6 > runs.gain[run, :done].max()
        assert np.isnan(runs.gain[run, done + 1 :]).all()
        assert exact.gain(WORLD, softmax(runs.theta[run])) == pytest.approx(runs.gain[run, done])


def test_it_learns() -> None:
    runs = ppo_tabular(WORLD, TabularPPO(), 3000, range(4), LATE["random"])
    assert (runs.gain[:, -1] > 0.97 * exact.optimal_gain(WORLD)).all()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: TabularPPO(episodes=0), "TabularPPO: episodes"),
        (lambda: TabularPPO(epochs=1.5), "epochs"),  # type: ignore[arg-type]
        (lambda: TabularPPO(clip=0), "clip"),
        (lambda: TabularPPO(lam=1.2), "lam"),
        (lambda: TabularPPO(actor_step=-1), "actor_step"),
        (lambda: TabularPPO(critic_power=float("nan")), "critic_power"),
        (lambda: TabularPPO(kl_stop=-0.1), "kl_stop"),
        (lambda: Lateness(Delays("exponential", 2.0)), "Lateness: delays"),
        (lambda: Lateness(Delays("geometric", 2.0), most=-1), "most"),
        (lambda: ppo_tabular(WORLD.transitions, TabularPPO(), 5, [1]), "world"),
        (lambda: ppo_tabular(WORLD, {"epochs": 3}, 5, [1]), "options"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 0, [1]), "iterations"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, []), "seeds"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [1, 1]), "seeds"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, None), "seeds"),  # type: ignore[arg-type]
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [[1, 2], [3]]), "seeds"),  # type: ignore[list-item]
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [2**63]), "seeds"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [1], 3), "lateness"),  # type: ignore[arg-type]
        (lambda: Lateness(3), "Lateness: delays"),  # type: ignore[arg-type]
        (lambda: TabularPPO(actor_step="2"), "actor_step"),  # type: ignore[arg-type]
        (lambda: TabularPPO(actor_step=10**400), "actor_step"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [1], every=0), "every"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [1], goal=float("inf")), "goal"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [1], theta=np.zeros((4, 4))), "theta"),
        (lambda: ppo_tabular(WORLD, TabularPPO(), 5, [1], critic=np.full((4, 4), np.nan)), "critic"),
    ],
)
def test_bad_input_is_one_error_that_names_the_argument(call: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        call()


def test_a_step_that_leaves_the_numbers_is_an_error() -> None:
    with pytest.raises(ConfigError, match="ppo_tabular: seed 3 left the range of numbers"):
        ppo_tabular(layered(0), TabularPPO(actor_step=1e308), 5, [3])
