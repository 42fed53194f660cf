"""Many players: the Monte Carlo gap against the exact one where there are few, and learning where there are many."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.games.markov import gaps
from stretto.games.potential.jobs import jobs
from stretto.games.potential.many import Crowd, crowd_gap, crowded_jobs, learn_crowd
from stretto.games.potential.online import Schedule
from stretto.kernel.errors import ConfigError


def few() -> tuple[Crowd, object]:
    """Two players, backlogs up to 2, all seen: the crowd and its exact game, started empty."""
    start = np.eye(9)[0]
    exact = jobs(2, backlog=2, start=start)
    return crowded_jobs(2, cap=2, backlog=2, levels=3), exact.game


@pytest.mark.parametrize("seed", [0, 1])
def test_the_monte_carlo_gap_is_the_exact_one(seed: int) -> None:
    world, game = few()
    rng = np.random.default_rng(seed)
    by_state = [rng.dirichlet(np.ones(2), size=9) for _ in range(2)]
    policies = np.array([np.concatenate([p, p]) for p in by_state])  # whatever the last machine was
    exact = gaps(game, by_state)  # type: ignore[arg-type]
    for player in range(2):
        found, error = crowd_gap(world, policies, player, 100_000, 40_000, seed)
        assert error < 0.02
        assert abs(found - exact[player]) < 4 * error + 0.005  # the response is estimated too
    assert exact.max() > 0.1


def test_twenty_players_learn_to_spread() -> None:
    world = crowded_jobs()
    assert (world.players, world.observations) == (20, 18)
    policies = learn_crowd(world, 60_000, 0)
    assert np.allclose(policies.sum(2), 1)
    before, error = crowd_gap(world, world.uniform_policies(), 3, 50_000, 5_000)
    after = [crowd_gap(world, policies, player, 50_000, 5_000)[0] for player in (0, 3)]
    assert before > 10 * error
    assert max(after) < 0.2 * before
    assert np.array_equal(policies, learn_crowd(world, 60_000, 0))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda w: crowded_jobs(0), "crowded_jobs: players"),
        (lambda w: crowded_jobs(levels=50), "crowded_jobs: levels"),
        (lambda w: crowded_jobs(service=(0.0, 0.5)), "crowded_jobs: service"),
        (lambda w: Crowd(w.costs, w.transitions, np.array([0, 2, 2]), 0.8), "Crowd: level"),
        (lambda w: Crowd(w.costs, w.transitions[..., :2], w.level, 0.8), "Crowd: transitions"),
        (lambda w: Crowd(w.costs, w.transitions, w.level, 1.0), "Crowd: gamma"),
        (lambda w: learn_crowd(w, 0, 0), "learn_crowd: steps"),
        (lambda w: learn_crowd(w, 5, 0, Schedule(floor=0.6)), "learn_crowd: floor"),
        (lambda w: crowd_gap(w, w.uniform_policies(), 5), "crowd_gap: player"),
        (lambda w: crowd_gap(w, w.uniform_policies()[:1], 0), "crowd_gap: policies"),
    ],
)
def test_bad_arguments_are_named(call: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call(few()[0])  # type: ignore[operator]
