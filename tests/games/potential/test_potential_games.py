"""The congestion, job and distancing games, their potentials and alpha; figures of the text are exact."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stretto.games.markov import MarkovGame, best_response, nash_gap, uniform_policies, values
from stretto.games.potential.batch import nash_gaps
from stretto.games.potential.congestion import Congestion, congestion_game, imcg
from stretto.games.potential.distancing import distancing
from stretto.games.potential.jobs import jobs
from stretto.games.potential.potential import (
    alpha_bound,
    alpha_enumerated,
    alpha_sampled,
    residuals,
    total_potential,
    transition_sensitivity,
)
from stretto.kernel.errors import ConfigError


def random_policies(game: MarkovGame, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.dirichlet(np.ones(a), size=game.states) for a in game.actions]


@pytest.mark.parametrize(
    ("kappa", "alpha", "bound", "gap"),
    [(0.05, 0.028305, 0.129729, 0.438900), (0.2, 0.106448, 0.555226, 0.430464), (0.3, 0.155883, 0.871982, 0.425662)],
)
def test_the_table_of_alpha(kappa: float, alpha: float, bound: float, gap: float) -> None:
    world = imcg(kappa)
    assert alpha_enumerated(world.game, world.potential) == pytest.approx(alpha, abs=5.1e-7)
    assert alpha_bound(world.game, world.potential) == pytest.approx(bound, abs=5.1e-7)
    assert nash_gap(world.game, uniform_policies(world.game)) == pytest.approx(gap, abs=5.1e-7)
    for concentration in (0.3, 1.0):
        sampled = alpha_sampled(world.game, world.potential, 100, concentration)
        assert 0.1 * alpha < sampled < alpha  # only a lower bound


def test_without_sensitivity_the_game_is_an_exact_potential_game() -> None:
    world = imcg(0.0)
    assert alpha_enumerated(world.game, world.potential) < 1e-13
    assert alpha_bound(world.game, world.potential) == 0
    policies = random_policies(world.game)
    for i in range(3):
        changed = list(policies)
        changed[i] = random_policies(world.game, 5)[i]
        by_value = values(world.game, changed)[i] - values(world.game, policies)[i]
        by_potential = total_potential(world.game, world.potential, changed) - total_potential(
            world.game, world.potential, policies
        )
        assert np.allclose(by_value, by_potential, rtol=0, atol=1e-12)
        assert np.abs(by_value).max() > 1e-3


def test_enumeration_is_the_largest_over_all_deterministic_profiles() -> None:
    world = imcg(0.2, players=2)
    d = MarkovGame(world.game.transitions, residuals(world.game, world.potential), world.game.gamma, world.game.actions)
    every = [np.eye(2)[list(choice)] for choice in itertools.product(range(2), repeat=4)]
    largest = 0.0
    for i in range(2):
        for other in every:
            found = np.array([values(d, [own, other] if i == 0 else [other, own])[i] for own in every])
            largest = max(largest, float((found.max(0) - found.min(0)).max()))
    assert alpha_enumerated(world.game, world.potential) == pytest.approx(largest, rel=1e-12)


@pytest.mark.parametrize("world", [imcg(0.3), jobs(), jobs(2, (0.3, 0.5, 0.9), backlog=1)])
def test_the_joint_law_is_the_product_of_the_resources(world: Congestion) -> None:
    game, resources, levels = world.game, len(world.resource_costs), world.resource_costs.shape[1]
    for s, z in enumerate(itertools.product(range(levels), repeat=resources)):
        for j, acts in enumerate(itertools.product(range(resources), repeat=game.players)):
            loads = [acts.count(e) for e in range(resources)]
            for after, y in enumerate(itertools.product(range(levels), repeat=resources)):
                p = np.prod([world.resource_moves[e, z[e], loads[e], y[e]] for e in range(resources)])
                assert game.transitions[s, j, after] == pytest.approx(p, abs=1e-14)
            for i, e in enumerate(acts):
                assert game.costs[i, s, j] == world.resource_costs[e, z[e], loads[e]]
            paid = sum(world.resource_costs[e, z[e], k] for e in range(resources) for k in range(1, loads[e] + 1))
            assert world.potential[s, j] == pytest.approx(paid, abs=1e-14)


def test_jobs_costs_and_service() -> None:
    world = jobs()
    assert (world.game.states, world.game.transitions.shape[1]) == (16, 8)
    assert world.resource_costs.max() == world.resource_costs[0, 3, 3] == 1  # the slow machine, full, all jobs
    assert world.resource_costs[1, 2, 1] == pytest.approx((2 + 1) / 1.6 / 5)  # (3 + 2) / (2 x .5) = 5 is the largest
    assert world.resource_moves[0, 1, 1] == pytest.approx([0.25, 0.5, 0.25, 0])
    assert world.resource_moves[1, 3, 2] == pytest.approx([0, 0, 0, 1])
    assert alpha_bound(world.game, world.potential) == pytest.approx(20.2575, abs=1e-9)
    sampled = alpha_sampled(world.game, world.potential, 300, 0.3)
    assert 0.9 < sampled < 2.4  # above the costs' own scale
    with pytest.raises(ConfigError, match=r"alpha_enumerated: player 0 .* deterministic opponents"):
        alpha_enumerated(world.game, world.potential)


def test_relabelling_players_permutes_everything() -> None:
    game = imcg(0.3).game
    policies, order = random_policies(game), [2, 0, 1]
    moved = [policies[i] for i in order]
    assert np.allclose(values(game, moved), values(game, policies)[order], rtol=0, atol=1e-12)
    for i in range(3):
        assert np.allclose(best_response(game, moved, i)[0], best_response(game, policies, order[i])[0], atol=1e-12)


def test_relabelling_resources_permutes_everything() -> None:
    world = imcg(0.3)
    swapped = congestion_game(world.resource_costs[::-1], world.resource_moves[::-1], world.game.gamma)
    states, joint = [0, 2, 1, 3], np.arange(8)[::-1]  # (z_0, z_1) -> (z_1, z_0); every player's other resource
    assert np.allclose(swapped.game.costs, world.game.costs[:, states][:, :, joint], atol=0)
    assert np.allclose(swapped.game.transitions, world.game.transitions[states][:, joint][:, :, states], atol=1e-15)
    assert np.allclose(swapped.potential, world.potential[states][:, joint], atol=1e-15)
    policies = random_policies(world.game)
    flipped = [p[states][:, ::-1] for p in policies]
    assert np.allclose(values(swapped.game, flipped), values(world.game, policies)[:, states], atol=1e-12)
    assert alpha_enumerated(swapped.game, swapped.potential) == pytest.approx(0.155883, abs=5.1e-7)


def test_two_players_best_response_is_the_best_of_all_deterministic_policies() -> None:
    game = imcg(0.3, players=2).game
    policies = random_policies(game, 3)
    for i in range(2):
        every = []
        for choice in itertools.product(range(2), repeat=game.states):
            tried = list(policies)
            tried[i] = np.eye(2)[list(choice)]
            every.append(values(game, tried)[i])
        assert np.allclose(best_response(game, policies, i)[0], np.min(every, axis=0), rtol=0, atol=1e-12)


def test_gaps_in_one_go_are_those_of_one_by_one() -> None:
    game = jobs(2, (0.3, 0.5, 0.9), backlog=1).game
    sets = [random_policies(game, seed) for seed in range(5)]
    one_by_one = [nash_gap(game, policies) for policies in sets]
    assert nash_gaps(game, np.array(sets)) == pytest.approx(one_by_one, abs=1e-12)
    assert min(one_by_one) > 0


def test_distancing_moves_with_the_largest_load() -> None:
    world = distancing()
    game = world.game
    assert (game.players, game.states, game.transitions.shape[1]) == (8, 2, 4**8)

    def joint(*acts: int) -> int:
        return int(np.ravel_multi_index(acts, game.actions))

    crowd, four, even = joint(3, 3, 3, 3, 3, 0, 1, 2), joint(3, 3, 3, 3, 0, 0, 1, 2), joint(0, 0, 1, 1, 2, 2, 3, 3)
    assert [game.transitions[0, j, 1] for j in (crowd, four, even)] == [1, 0, 0]
    assert [game.transitions[1, j, 1] for j in (crowd, four, even)] == [1, 1, 0]
    assert game.costs[0, :, crowd] * 99 == pytest.approx([-30, 70])  # 6 x 5 players, less 100; scale |1 - 100|
    small = distancing(4)
    bound = alpha_bound(small.game, small.potential)  # an exact stage potential, or it would be refused
    assert transition_sensitivity(small.game) == 1
    assert 0 < alpha_sampled(small.game, small.potential, 40) < bound


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: imcg(1.5), "imcg: kappa"),
        (lambda: imcg(0.1, players=0), "imcg: players"),
        (lambda: imcg(0.1, gamma=1.0), "gamma"),
        (lambda: imcg(0.1, players=20), "congestion_game: .* too many"),
        (lambda: imcg(0.1, start=[0.5, 0.5]), "congestion_game: start"),
        (lambda: jobs(service=(0.5, 1.2)), "jobs: service"),
        (lambda: jobs(backlog=0), "jobs: backlog"),
        (lambda: congestion_game(np.ones((2, 2, 3)), np.ones((2, 2, 3, 2)), 0.8), "congestion_game: transitions"),
        (
            lambda: congestion_game(np.ones((2, 2, 4)), np.full((2, 2, 3, 2), 0.5), 0.8),
            "congestion_game: transitions has",
        ),
        (lambda: congestion_game(np.ones((2, 2, 1)), np.full((2, 2, 1, 2), 0.5), 0.8), "congestion_game: costs"),
        (lambda: distancing(12), "distancing: .* too many"),
        (lambda: distancing(weights=(1, -1)), "distancing: weights"),
        (lambda: alpha_bound(imcg(0.1).game, np.zeros((4, 8))), "alpha_bound: potential isn't"),
        (lambda: alpha_bound(imcg(0.1).game, np.zeros((4, 7))), "potential"),
        (lambda: alpha_sampled(imcg(0.1).game, imcg(0.1).potential, concentration=0), "alpha_sampled: concentration"),
    ],
)
def test_bad_arguments_are_named(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call()  # type: ignore[operator]


def test_sensitivity_is_that_of_one_players_move() -> None:
    world = imcg(0.3)
    by_hand = 0.0
    for s in range(4):
        for acts in itertools.product(range(2), repeat=3):
            for i in range(3):
                other = list(acts)
                other[i] = 1 - acts[i]
                at, to = (int(np.ravel_multi_index(x, (2, 2, 2))) for x in (acts, other))
                by_hand = max(
                    by_hand, float(np.abs(world.game.transitions[s, at] - world.game.transitions[s, to]).sum()) / 2
                )
    assert transition_sensitivity(world.game) == pytest.approx(by_hand, rel=1e-12)
