"""Tactical learners on somebody else's environment: Gymnasium, with a tuple of observations, actions and rewards.

The package `lbforaging` (Level-Based Foraging; Papoudakis, Christianos, Schäfer and Albrecht, arXiv 2006.07869) has
such ones, as `Foraging-8x8-2p-2f-v3`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ConfigError
from stretto.games.foraging.tactical import TacticalLearner
from stretto.tabular.arguments import array, number


def play(
    env: Any, learners: Sequence[TacticalLearner], episodes: int, view: Callable[[Any], Hashable], *,
    learn: bool = True, seed: int = 0,
) -> NDArray[np.float64]:  # fmt: skip
    """Play ``episodes`` of ``env`` (reset with ``seed``, ``seed + 1``, ...), one learner an agent; ``view`` makes what
    an agent sees a value that can be looked up. ``learn`` False: act alone. Returns each episode's reward, summed over
    the agents. ``ConfigError`` if the learners don't fit the environment."""
    number("play", "episodes", episodes, 1, whole=True)
    number("play", "seed", seed, 0, whole=True)
    spaces = getattr(env.action_space, "spaces", ())
    counts, has = [int(getattr(s, "n", 0)) for s in spaces], [learner.actions for learner in learners]
    if counts != has or not has:
        raise ConfigError(f"play: learners have {has} actions but the environment's agents have {counts}; match them")
    returns = np.zeros(int(episodes))
    for episode in range(len(returns)):
        observations, _ = env.reset(seed=seed + episode)
        seen, over = [view(o) for o in observations], False
        while not over:
            actions = [learner.act(o) for learner, o in zip(learners, seen, strict=True)]
            observations, rewards, ended, cut, _ = env.step(actions)
            following = [view(o) for o in observations]
            if learn:
                for i, learner in enumerate(learners):
                    learner.learn(seen[i], actions[i], float(rewards[i]), following[i], bool(ended))
            seen, over = following, bool(ended or cut)
            returns[episode] += float(np.sum(rewards))
    return returns


def nearest_food(observation: Any, foods: int = 2) -> tuple[int, int, bool, bool] | None:
    """A small view of `lbforaging`'s vector [row, column, level of each food, of oneself, of the other player], all of
    it in sight: (rows, columns) to the nearest food that one can lift alone (to the nearest one if there is none), cut
    at 2; whether it is too heavy; whether the other player stands next to it. None if no food is left. ``ConfigError``
    for a vector of another length."""
    numbers = array("nearest_food", "observation", observation, (3 * (foods + 2),)).astype(int).tolist()
    triples = [numbers[3 * i : 3 * i + 3] for i in range(foods + 2)]
    (row, column, level), (other_row, other_column, _) = triples[foods:]
    found = [(w > level, abs(r - row) + abs(c - column), r, c) for r, c, w in triples[:foods] if w > 0]
    if not found:
        return None
    heavy, _, r, c = min(found)
    beside = abs(r - other_row) + abs(c - other_column) == 1
    return max(-2, min(2, r - row)), max(-2, min(2, c - column)), heavy, beside
