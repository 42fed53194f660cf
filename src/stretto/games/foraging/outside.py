"""Tactical learners on somebody else's environment: Gymnasium, with a tuple of observations, actions and rewards.

The package `lbforaging` (Level-Based Foraging; Papoudakis, Christianos, Schäfer and Albrecht, arXiv 2006.07869) has
such ones, as `Foraging-8x8-2p-2f-v3`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.games.foraging.tactical import TacticalLearner
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number

Seen = TypeVar("Seen")
Seen_co = TypeVar("Seen_co", covariant=True)


class GroupEnv(Protocol[Seen_co]):
    """Gymnasium's interface for several agents at once: what each sees, does and gets, in tuples."""

    @property
    def action_space(self) -> object:
        """A tuple of ``Discrete`` spaces."""

    def reset(self, *, seed: int | None = None) -> tuple[Sequence[Seen_co], object]:
        """Observations, info."""

    def step(self, actions: list[int], /) -> tuple[Sequence[Seen_co], Sequence[float], bool, bool, object]:
        """Observations, rewards, whether the episode ended, whether it was cut, info."""


def play(
    env: GroupEnv[Seen], learners: Sequence[TacticalLearner], episodes: int, view: Callable[[Seen], Hashable], *,
    learn: bool = True, seed: int = 0,
) -> Floats:  # fmt: skip
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


def nearest_food(observation: ArrayLike, foods: int = 2, players: int = 2) -> tuple[int, int, bool, bool] | None:
    """A small view of `lbforaging`'s vector [row, column, level of each food, of oneself, of the other players], all of
    it in sight: (rows, columns) to the nearest food that one can lift alone (to the nearest one if there is none), cut
    at 2; whether it is too heavy; whether another player stands next to it. None if no food is left. An environment
    with other numbers of ``foods`` or ``players`` takes ``functools.partial(nearest_food, foods=3, players=3)``.
    ``ConfigError`` for a vector of another length."""
    number("nearest_food", "foods", foods, 1, whole=True)
    number("nearest_food", "players", players, 1, whole=True)
    shape, fits = np.shape(observation), 3 * (foods + players)
    if shape != (fits,):
        raise ConfigError(
            f"nearest_food: observation has shape {list(shape)}, but {foods} foods and {players} players make {fits} "
            "numbers; name both, as partial(nearest_food, foods=3, players=3)"
        )
    numbers = array("nearest_food", "observation", observation).astype(int).tolist()
    triples = [numbers[3 * i : 3 * i + 3] for i in range(foods + players)]
    (row, column, level), *others = triples[foods:]
    found = [(w > level, abs(r - row) + abs(c - column), r, c) for r, c, w in triples[:foods] if w > 0]
    if not found:
        return None
    heavy, _, r, c = min(found)
    beside = any(abs(r - other[0]) + abs(c - other[1]) == 1 for other in others)
    return max(-2, min(2, r - row)), max(-2, min(2, c - column)), heavy, beside
