"""Projection, exact updates, and the online and episodic learners against their plain references."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.games.markov import MarkovGame, best_response, face, gaps, nash_conv, nash_gap, uniform_policies, values
from stretto.games.potential import episodic, online
from stretto.games.potential.congestion import imcg
from stretto.games.potential.jobs import jobs
from stretto.games.potential.npg import npg, player_q
from stretto.games.potential.play import Run, log_times
from stretto.games.potential.potential import total_potential
from stretto.games.potential.projection import kl_project
from stretto.games.potential.regret import gaps_along, nash_regret
from stretto.kernel.errors import ConfigError
from stretto.tabular.mdp import action_values, deterministic


def mixed(seed: int = 0) -> MarkovGame:
    """Three players with 2, 3 and 1 actions, five states, random arrays."""
    rng = np.random.default_rng(seed)
    return MarkovGame(rng.dirichlet(np.ones(5), size=(5, 6)), rng.random((3, 5, 6)), 0.7, (2, 3, 1))


@pytest.mark.parametrize(
    ("q", "floor", "p"),
    [
        ([0.7, 0.2, 0.06, 0.04], 0.1, [0.622222, 0.177778, 0.1, 0.1]),
        ([0.9, 0.05, 0.03, 0.015, 0.005], 0.04, [0.833684, 0.046316, 0.04, 0.04, 0.04]),
        ([0.2, 0.8], 0.5, [0.5, 0.5]),
        ([3.0, 1.0], 0.0, [0.75, 0.25]),
        ([[0.0, 1.0], [1.0, 1.0]], 0.25, [[0.25, 0.75], [0.5, 0.5]]),
    ],
)
def test_projections(q: list[float], floor: float, p: list[float]) -> None:
    assert np.allclose(kl_project(q, floor), p, rtol=0, atol=5.1e-7)


@given(st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_the_projection_meets_its_kkt_conditions(weights: list[float], share: float) -> None:
    q = np.array(weights) / sum(weights)
    floor = share / len(q)
    p = kl_project(q, floor)
    assert p.sum() == pytest.approx(1, abs=1e-12)
    assert p.min() >= floor * (1 - 1e-12)
    free = p > floor * (1 + 1e-9)
    if free.any():
        c = (p / q)[free]
        assert c == pytest.approx(np.full(len(c), c[0]), rel=1e-9)
        assert ((p / q)[~free] >= c[0] * (1 - 1e-9)).all()


@pytest.mark.parametrize(
    ("q", "floor", "said"),
    [
        ([0.5, 0.5], 0.6, "kl_project: floor"),
        ([0.5, 0.5], -0.1, "kl_project: floor"),
        ([0.5, np.nan], 0.1, "kl_project: q"),
        ([0.0, 0.0], 0.1, "kl_project: q"),
        ([-0.5, 1.5], 0.1, "kl_project: q"),
    ],
)
def test_what_cannot_be_projected_is_refused(q: list[float], floor: float, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kl_project(q, floor)


def test_q_is_that_of_the_process_each_player_faces() -> None:
    game = mixed()
    rng = np.random.default_rng(1)
    policies = [rng.dirichlet(np.ones(a), size=5) for a in game.actions]
    for i, q in enumerate(player_q(game, policies)):
        assert np.allclose(q, -action_values(face(game, policies, i), -values(game, policies)[i]), rtol=0, atol=1e-12)


def test_sequential_updates_lower_the_potential_and_best_responses_end_there() -> None:
    world = imcg(0.0)
    phi: list[float] = []
    last = npg(world.game, 400, 0.3, 1e-4, sequential=True,
               watch=lambda k, p: phi.append(total_potential(world.game, world.potential, p).sum()))  # fmt: skip
    assert (np.diff(phi) <= 1e-12).all()
    assert phi[0] - phi[-1] > 0.1
    assert nash_gap(world.game, last) < 1e-2
    policies = uniform_policies(world.game)
    for turn in itertools.count():
        before = total_potential(world.game, world.potential, policies)
        changed = False
        for i in range(3):
            value, choice = best_response(world.game, policies, i)
            if (values(world.game, policies)[i] - value > 1e-10).any():
                policies[i], changed = deterministic(choice, 2), True
        if not changed:
            break
        assert (total_potential(world.game, world.potential, policies) < before + 1e-12).all()
        assert turn < 50
    assert 0 <= nash_gap(world.game, policies) + 1e-12 < 1e-10
    assert nash_conv(world.game, policies) < 1e-10
    assert total_potential(world.game, world.potential, policies) == pytest.approx(
        total_potential(world.game, world.potential, last), abs=5e-2
    )


@pytest.mark.parametrize("seed", range(5))
def test_gaps_are_not_negative(seed: int) -> None:
    game = mixed(seed)
    rng = np.random.default_rng(seed)
    policies = [rng.dirichlet(np.ones(a), size=5) for a in game.actions]
    assert nash_conv(game, policies) >= nash_gap(game, policies) >= 0
    for near in (policies, npg(game, 200, eta=0.3, floor=1e-3)):
        assert gaps(game, near).min() >= -1e-12


def test_jobs_reach_an_equilibrium() -> None:
    game = jobs().game
    seen: dict[int, float] = {}

    def watch(k: int, policies: list[np.ndarray]) -> None:
        if k in (0, 30, 300, 1000):
            seen[k] = nash_gap(game, policies)

    npg(game, 1000, 0.3, 1e-3, watch=watch)
    assert list(seen.values()) == pytest.approx([0.75599, 0.08742, 0.00146, 0.00062], abs=5.1e-6)


@pytest.mark.parametrize("game", [imcg(0.1, 4).game, mixed()])
def test_the_kernels_equal_the_plain_references_to_the_last_bit(game: MarkovGame) -> None:
    for schedule in (online.SET_1, online.SET_2):
        run = online.learn_online(game, 700, [4, 9], schedule, 0.1, state=1)
        for place, seed in enumerate((4, 9)):
            plain = online.reference(game, 700, seed, schedule, 0.1, state=1)
            assert all(np.array_equal(a, b) for a, b in zip(run.at(place, -1), plain, strict=True))
    run = episodic.learn_episodic(game, 6, 40, [4, 9], noise=0.1)
    for place, seed in enumerate((4, 9)):
        plain = episodic.reference(game, 6, 40, seed, noise=0.1)
        assert all(np.array_equal(a, b) for a, b in zip(run.at(place, -1), plain, strict=True))


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    game = imcg(0.1, 4).game
    many = online.learn_online(game, 3000, range(3), noise=0.1), episodic.learn_episodic(game, 5, 20, range(3))
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        one = online.learn_online(game, 3000, range(3), noise=0.1), episodic.learn_episodic(game, 5, 20, range(3))
    finally:
        numba.set_num_threads(threads)
    alone = online.learn_online(game, 3000, [2], noise=0.1)
    assert all(np.array_equal(a.policies, b.policies) for a, b in zip(many, one, strict=True))
    assert np.array_equal(alone.policies[0], many[0].policies[2])


def test_what_is_kept_on_the_way_is_what_a_shorter_run_ends_with() -> None:
    game = imcg(0.1, 4).game
    whole = online.learn_online(game, 500, [1], noise=0.1, times=[0, 120, 500])
    assert np.array_equal(whole.policies[0, 0], np.full((4, 4, 2), 0.5))
    assert np.array_equal(whole.policies[0, 1], online.learn_online(game, 120, [1], noise=0.1).policies[0, -1])
    rounds = episodic.learn_episodic(game, 9, 10, [1], times=[4, 9])
    assert np.array_equal(rounds.policies[0, 0], episodic.learn_episodic(game, 4, 10, [1]).policies[0, -1])


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_rollouts_of_geometric_length_are_unbiased(noise: float) -> None:
    game = imcg(0.1, 4).game
    rng = np.random.default_rng(2)
    policies = [0.2 + 0.6 * rng.dirichlet(np.ones(2), size=4) for _ in range(4)]
    estimates, errors, starts = episodic.estimate_q(game, policies, 100_000, 1, noise)
    assert starts.sum() == 100_000
    for q, mean, error in zip(player_q(game, policies), estimates, errors, strict=True):
        assert (error > 0).all()
        assert (error < 0.05).all()
        assert (np.abs(mean - q) < 4 * error).all()


def test_without_a_future_a_rollout_is_one_exact_cost() -> None:
    game = imcg(0.1, 2, gamma=0.0).game
    sure = [np.eye(2)[[0, 1, 0, 1]], np.eye(2)[[1, 1, 0, 0]]]  # one joint action a state: no sampling error left
    estimates, _, starts = episodic.estimate_q(game, sure, 200, 3)
    assert starts.min() > 0
    for i, mean in enumerate(estimates):
        for s in range(4):
            joint = 2 * sure[0][s].argmax() + sure[1][s].argmax()
            assert mean[s, sure[i][s].argmax()] == pytest.approx(game.costs[i, s, joint], rel=1e-12)
            assert mean[s, sure[i][s].argmin()] == 0


def test_regret_is_the_mean_of_the_gap() -> None:
    times = np.array([0, 1, 4, 10])
    assert nash_regret(times, 3.0 - 0.1 * times) == pytest.approx(3.0 - 0.05 * times[1:])
    game = imcg(0.1, 4).game
    run = online.learn_online(game, 1000, range(2), noise=0.1)
    gaps = gaps_along(game, run)
    assert gaps[0, 0] == gaps[1, 0] == pytest.approx(nash_gap(game, uniform_policies(game)), abs=1e-12)
    assert gaps[1, 9] == pytest.approx(nash_gap(game, run.at(1, 9)), abs=1e-12)
    with pytest.raises(ConfigError, match="nash_regret: times"):
        nash_regret(times[1:], np.ones(3))
    with pytest.raises(ConfigError, match="nash_regret: gaps"):
        nash_regret(times, np.ones(3))


def test_online_learning_lowers_the_gap() -> None:
    game = imcg(0.1, 4).game
    run = online.learn_online(game, 100_000, range(4), online.SET_2, noise=0.1)
    regret = nash_regret(run.times, gaps_along(game, run)).mean(0)
    assert 0.06 < regret[-1] < 0.10
    assert list(log_times(1000, 4)) == [0, 1, 10, 100, 1000]
    assert isinstance(run, Run)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda g: online.learn_online(g, 0, [0]), "learn_online: steps"),
        (lambda g: online.learn_online(g, 10, []), "learn_online: seeds"),
        (lambda g: online.learn_online(g, 10, [1, 1]), "learn_online: seeds"),
        (lambda g: online.learn_online(g, 10, [0], online.Schedule(floor=0.6)), "learn_online: floor"),
        (lambda g: online.learn_online(g, 10, [0], "SET_2"), "learn_online: schedule must be a Schedule"),
        (lambda g: online.learn_online(g, 10, [0], noise=-1), "learn_online: noise"),
        (lambda g: online.learn_online(g, 10, [0], times=[3, 2]), "learn_online: times"),
        (lambda g: online.learn_online(g, 10, [0], times=[11]), "learn_online: times"),
        (lambda g: online.learn_online(g, 10, [0], state=4), "learn_online: state"),
        (lambda g: online.Schedule(actor=-1), "Schedule: actor"),
        (lambda g: online.Schedule(critic_power=np.nan), "Schedule: critic_power"),
        (lambda g: episodic.learn_episodic(g, 5, 0, [0]), "learn_episodic: rollouts"),
        (lambda g: episodic.learn_episodic(g, 5, 5, [0], eta=0), "learn_episodic: eta"),
        (lambda g: episodic.learn_episodic(g, 5, 5, [0], floor=0.51), "learn_episodic: floor"),
        (lambda g: episodic.estimate_q(g, [np.ones((4, 2))] * 4, 5, 0), r"estimate_q: policies\[0\]"),
        (lambda g: npg(g, 5, -0.1, 0.01), "npg: eta"),
        (lambda g: npg(g, 5, 0.1, 0.6), "npg: floor"),
        (lambda g: npg(g, 5, 0.1, 0.1, bias=[np.zeros((4, 2))]), "npg: bias"),
        (lambda g: npg(g, 5, 0.1, 0.1, policies=[np.ones((4, 2))] * 4), "policies"),
    ],
)
def test_bad_arguments_are_named(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call(imcg(0.1, 4).game)  # type: ignore[operator]
