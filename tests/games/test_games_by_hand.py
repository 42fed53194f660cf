"""The online learner's constants and steps, and Mini-CHMAS's first pulls, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.games.foraging.mini import mini
from stretto.games.foraging.mini_loop import ARM, PAY, SEASON, climb
from stretto.games.foraging.training import Training
from stretto.games.potential import online
from stretto.games.potential.congestion import imcg
from stretto.games.potential.play import ACTIONS, MOVES, NOISE, tables
from stretto.tabular.counter import key, normal, uniform
from stretto.tabular.sampling import alias_sample


@pytest.mark.parametrize(
    ("schedule", "critic", "actor", "lowest"),
    [(online.SET_1, 1 / 2, 4 / 5, 1 / 4), (online.SET_2, 2 / 5, 2 / 3, 2 / 15)],
)
def test_the_online_steps_by_hand(schedule: online.Schedule, critic: float, actor: float, lowest: float) -> None:
    """Two actions: q in one number, the projection a clip; the constants are written out."""
    game, seed, steps = imcg(0.1, 4).game, 7, 600
    law, choose, move, blur = tables(game), *(key(seed, stream) for stream in (ACTIONS, MOVES, NOISE))
    first, q, visits, s = np.full((4, 4), 0.5), np.zeros((4, 4, 2)), np.zeros(4), 0
    for t in range(steps):
        acts = [int(uniform(choose, 4 * t + i) >= first[i, s]) for i in range(4)]
        joint = 8 * acts[0] + 4 * acts[1] + 2 * acts[2] + acts[3]
        after = int(alias_sample(law.columns, law.bits, 16 * s + joint, uniform(move, t)))
        visits[s] += 1
        floor = 0.3 / (t + 1) ** lowest
        for i, a in enumerate(acts):
            own = (first[i, s], 1 - first[i, s])[a]
            ahead = first[i, after] * q[i, after, 0] + (1 - first[i, after]) * q[i, after, 1]
            target = game.costs[i, s, joint] + 0.1 * normal(blur, 4 * t + i) + 0.8 * ahead
            q[i, s, a] += min(1, visits[s] ** -critic / own) * (target - q[i, s, a])
            odds = first[i, s] / (1 - first[i, s]) * np.exp(0.5 / visits[s] ** actor * (q[i, s, 1] - q[i, s, 0]))
            first[i, s] = np.clip(odds / (1 + odds), floor, 1 - floor)
        s = after
    run = online.learn_online(game, steps, [seed], schedule, 0.1)
    np.testing.assert_allclose(run.policies[0, -1, :, :, 0], first, rtol=0, atol=1e-10)


def test_a_pull_is_paid_before_the_skill_grows() -> None:
    model = mini()
    season, choice, pay = (key(4, stream) for stream in (SEASON, ARM, PAY))
    z, m = int(2 * uniform(season, 0)), int(8 * uniform(choice, 0))
    reward = model.base[z, m] + 0.1 * normal(pay, 0)
    expected = np.zeros((2, 8))
    expected[z] = 2 * reward * ((np.arange(8) == m) - 1 / 8)
    np.testing.assert_allclose(climb(model, [4], [1]).theta[0], expected, atol=1e-12)


def test_the_foragers_constants() -> None:
    told = Training()
    assert (told.blocks, told.episodes, told.coupling) == (600, 20, 3.0)
    assert (told.step, told.discount, told.explore) == (0.1, 0.9, 0.1)
    assert (told.scale, told.track, told.late) == (30.0, 0.02, 60)
