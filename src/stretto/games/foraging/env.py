"""The foragers' world as a PettingZoo ``ParallelEnv``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gymnasium.spaces import Discrete
from pettingzoo import ParallelEnv

from stretto.data.arrays import Ints
from stretto.games.foraging.world import ACTIONS, ARMS, SEASONS, Field, Foraging
from stretto.tabular.arguments import index_in

Guide = Callable[[int, float], int]


class ForagingEnv(ParallelEnv):
    """Agents ``forager_0`` and ``forager_1``; observations ``Foraging.observe``'s numbers; rewards food + shaping;
    truncated after an episode. ``guide(z, u)``: the strategist, asked at each period's start for a joint assignment in
    0 .. 15 (``u`` uniform on [0, 1) is its luck, so ``Strategist.choose`` fits); None: uniform.

    ``infos[agent]``: ``food``, ``shaping``, ``guided`` (the quadrant), ``following``: the observation right after the
    step; it differs from the returned one where a new period has begun, and is the one to bootstrap from. ``state()``:
    what the strategist sees, [z, arm, cell 0, cell 1, food of each cell]."""

    metadata = {"name": "stretto_foraging_v0", "render_modes": []}  # noqa: RUF012  # PettingZoo's own form

    def __init__(self, world: Foraging | None = None, guide: Guide | None = None) -> None:
        self.world = world or Foraging()
        self.guide: Guide = guide or (lambda z, u: int(u * ARMS))
        self.possible_agents = ["forager_0", "forager_1"]
        self.agents: list[str] = []
        self.field = Field(self.world)
        self.render_mode = None
        self._steps = 0
        self._rng = np.random.default_rng()
        self._observation, self._action = Discrete(self.world.observations), Discrete(len(ACTIONS))

    def observation_space(self, agent: str) -> Discrete:
        """``Discrete``: the numbers of ``Foraging.observe``, the same for both foragers."""
        return self._observation

    def action_space(self, agent: str) -> Discrete:
        """``Discrete(5)``: the place in ``ACTIONS`` (stay and four directions), the same for both foragers."""
        return self._action

    def reset(
        self, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[dict[str, int], dict[str, dict[str, float]]]:
        """A new episode; ``seed`` starts the random numbers anew. ``options`` are not used."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        self.field.begin(self.world.start(*self._rng.random(2)))
        self._season()
        seen = self._observations()
        infos = {a: self._info(i, 0, 0.0, seen[a]) for i, a in enumerate(self.agents)}
        return seen, infos

    def step(
        self, actions: dict[str, int]
    ) -> tuple[dict[str, int], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, float]]]:
        """Both foragers act at once: (observations, rewards, terminations, truncations, infos), each by agent.
        ``ConfigError`` for an action that isn't in the action space."""
        got = self.field.step([int(actions[a]) for a in self.agents])
        self._steps += 1
        seen = self._observations()
        infos = {a: self._info(i, got.food[i], got.shaping[i], seen[a]) for i, a in enumerate(self.agents)}
        rewards = {a: got.food[i] + got.shaping[i] for i, a in enumerate(self.agents)}
        over = self._steps == self.world.steps
        if not over and self._steps % self.world.period == 0:
            self._season()
            seen = self._observations()
        ends, cuts = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, over)
        if over:
            self.agents = []
        return seen, rewards, ends, cuts, infos

    def state(self) -> Ints:
        """What the strategist sees, and foragers don't: an int array [z, arm, cell 0, cell 1, food of each cell]."""
        return np.array([self.field.z, self.field.arm, *self.field.cells, *self.field.food], np.int64)

    def _season(self) -> None:
        z = int(self._rng.integers(SEASONS))
        arm = index_in("ForagingEnv", "guide(season, number)", self.guide(z, self._rng.random()), ARMS)
        self.field.season(z, arm, self._rng.random(self.world.cells))

    def _observations(self) -> dict[str, int]:
        return {a: self.field.observe(i) for i, a in enumerate(self.possible_agents)}

    def _info(self, i: int, food: int, shaping: float, following: int) -> dict[str, float]:
        return {"food": food, "shaping": shaping, "guided": self.field.guided(i), "following": following}
