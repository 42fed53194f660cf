"""The Cournot market as a PettingZoo environment: all firms choose their quantities at once."""

from __future__ import annotations

import gymnasium
import numpy as np
from pettingzoo import ParallelEnv

from stretto.data.arrays import Floats
from stretto.games.lq.cournot import Cournot
from stretto.games.lq.market import NOISE
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number
from stretto.tabular.counter import key, normal


class CournotMarket(ParallelEnv[str, Floats, Floats]):
    """``model`` with agents ``firm_0`` ..: each sees the price [1] (and, if ``published``, the total output of the
    step before [2]) and makes a quantity [1] in [0, q_max]; its reward is its profit. It ends by truncation after
    ``horizon`` steps (None: never). ``reset(seed=s)`` gives the price noise that ``cournot_least_squares`` has for
    seed s. The exact arrays are ``model.game()``."""

    def __init__(self, model: Cournot, published: bool = False, horizon: int | None = None) -> None:
        self.metadata = {"name": "stretto_cournot", "render_modes": []}
        self.render_mode = None
        self.model, self.published = model, published
        self.horizon = None if horizon is None else int(number("CournotMarket", "horizon", horizon, 1, whole=True))
        self.possible_agents = [f"firm_{i}" for i in range(model.firms)]
        self.agents: list[str] = []
        low = np.array([-np.inf, 0.0])[: 1 + published]
        high = np.array([np.inf, model.q_max * model.firms])[: 1 + published]
        self.observation_spaces = {a: gymnasium.spaces.Box(low, high, dtype=np.float64) for a in self.possible_agents}
        self.action_spaces = {a: gymnasium.spaces.Box(0.0, model.q_max, (1,), np.float64) for a in self.possible_agents}
        self.rng = np.random.default_rng()
        self.noise = key(0, NOISE)
        self.price, self.output, self.steps = model.a / 2, 0.0, 0

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """``Box``: the price, and the total output of the step before if it is published."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        """``Box`` [1]: a quantity in [0, q_max]."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, float] | None = None
    ) -> tuple[dict[str, Floats], dict[str, dict[str, float]]]:
        """Start at the price a/2, or at ``options={"price": p}``; returns (observations, infos) by agent."""
        if seed is None:
            chosen = int(self.rng.integers(2**31))
        else:
            chosen = int(number("CournotMarket.reset", "seed", seed, 0, whole=True))
        self.noise = key(chosen, NOISE)
        self.rng = np.random.default_rng(chosen)
        self.price = number("CournotMarket.reset", "price", (options or {}).get("price", self.model.a / 2))
        self.output, self.steps, self.agents = 0.0, 0, list(self.possible_agents)
        return self._see(), {a: {} for a in self.agents}

    def step(
        self, actions: dict[str, Floats]
    ) -> tuple[dict[str, Floats], dict[str, float], dict[str, bool], dict[str, bool], dict[str, dict[str, float]]]:
        """Observations, rewards (profits), terminations, truncations, infos (``consumer`` surplus and ``hhi`` of the
        step). ``ConfigError`` if a firm's quantity is missing or outside [0, q_max]."""
        if not self.agents:
            raise ConfigError("CournotMarket.step: call reset() first")
        model, q = self.model, np.empty(self.model.firms)
        for i, agent in enumerate(self.possible_agents):
            if agent not in actions:
                raise ConfigError(f"CournotMarket.step: actions hold no quantity of {agent}")
            given = array("CournotMarket.step", f"actions[{agent!r}]", np.ravel(actions[agent]), (1,))[0]
            q[i] = number("CournotMarket.step", f"actions[{agent!r}]", given, 0, model.q_max)
        total, before = sum(q.tolist()), self.price
        shock = model.sigma * normal(self.noise, self.steps)
        self.price = (1 - model.s) * before + model.s * (model.a - model.b * total) + shock
        profits = model.profits(before, q, self.price)
        paid = self.price if model.timing == 2 else before
        info = {
            "consumer": (model.a - model.b / 2 * total - paid) * total,
            "hhi": float(((q / total) ** 2).sum()) if total > 0 else 1 / model.firms,
        }
        self.output, self.steps = total, self.steps + 1
        over = self.steps == self.horizon
        told = (
            self._see(),
            {a: float(x) for a, x in zip(self.possible_agents, profits, strict=True)},
            dict.fromkeys(self.possible_agents, False),
            dict.fromkeys(self.possible_agents, over),
            {a: dict(info) for a in self.possible_agents},
        )
        if over:
            self.agents = []
        return told

    def _see(self) -> dict[str, Floats]:
        return {a: np.array([self.price, self.output][: 1 + self.published]) for a in self.possible_agents}
