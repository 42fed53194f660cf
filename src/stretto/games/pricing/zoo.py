"""The market as a PettingZoo AEC environment: ``agent_selection`` is the firm whose clock fired."""

from __future__ import annotations

import gymnasium
import numpy as np
from pettingzoo import AECEnv

from stretto.data.arrays import Floats
from stretto.games.pricing.engine import SEED_END, Clocks, Engine, Turn, box_of
from stretto.games.pricing.logit import Market
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number, of_type


class PricingEnv(AECEnv[str, Floats, Floats]):
    """Agents ``firm_0`` ..; action [1] in [-1, 1], scaled to ``box``, sets the price; observation [N]: own price, then
    the rivals' as observed.

    The reward that ``last()`` gives a firm at its event is its normalised flow since its last one, exactly (its first
    reward leaves out what came in before anybody moved); its info
    holds ``time`` and ``factor`` = e^{-rho Dt}, the discount of what comes after. Ends by truncation after ``events``
    events (None: never). Prices start at the box's midpoint. ``ConfigError`` for a bad box."""

    def __init__(
        self,
        market: Market | None = None,
        clocks: Clocks | None = None,
        box: tuple[float, float] = (1.43, 1.97),
        events: int | None = None,
    ) -> None:
        super().__init__()
        self.metadata = {"name": "stretto_pricing", "render_modes": [], "is_parallelizable": False}
        self.render_mode = None
        self.market = Market() if market is None else market
        self.clocks = Clocks() if clocks is None else clocks
        of_type("PricingEnv", market=(self.market, Market), clocks=(self.clocks, Clocks))
        self.clocks.order(self.market.firms)
        self.box = low, high = box_of("PricingEnv", box)
        self.events = None if events is None else int(number("PricingEnv", "events", events, 1, whole=True))
        self.possible_agents = [f"firm_{i}" for i in range(self.market.firms)]
        self.action_spaces = {a: gymnasium.spaces.Box(-1, 1, (1,), np.float64) for a in self.possible_agents}
        self.observation_spaces = {
            a: gymnasium.spaces.Box(low, high, (self.market.firms,), np.float64) for a in self.possible_agents
        }
        self.agents: list[str] = []
        self._seed = 0

    def observation_space(self, agent: str) -> gymnasium.spaces.Box:
        """``Box`` [N]: own price first, then the rivals' as they are seen, in the price box."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> gymnasium.spaces.Box:
        """``Box`` [1] in [-1, 1], which stands for the price box from its lowest to its highest price."""
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, object] | None = None) -> None:
        """Start anew and run to the first event. Without a ``seed`` the one after the last is taken."""
        seed = self._seed + 1 if seed is None else seed
        self._seed = int(number("PricingEnv.reset", "seed", seed, 0, below=SEED_END, whole=True))
        self.agents = list(self.possible_agents)
        zeros = dict.fromkeys(self.agents, 0.0)
        self.rewards, self._cumulative_rewards = dict(zeros), dict(zeros)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, float]] = {a: {} for a in self.agents}
        self.engine = Engine(self.market, self.clocks, [sum(self.box) / 2] * self.market.firms, self._seed)
        self._advance()
        self.rewards = dict(zeros)  # what came in before the first event followed from no action

    def observe(self, agent: str) -> Floats:
        """What ``agent`` sees at the current time; a mover sees what was in force before the event."""
        i = self._place("observe", agent)
        if i in self._turn.movers:
            return self._turn.seen[self._turn.movers.index(i)]
        return self.engine.observe(i)

    def step(self, action: Floats | None) -> None:
        """The selected firm sets its price; when all movers of the event have, time runs to the next event."""
        if not self.agents:
            raise ConfigError("PricingEnv.step: call reset first")
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        try:
            chosen = np.asarray(action, np.float64).ravel()
        except (TypeError, ValueError):
            chosen = np.empty(0)
        if chosen.shape != (1,) or not -1 <= chosen[0] <= 1:
            raise ConfigError(f"PricingEnv.step: action {action} of {agent} must be one number from -1 to 1")
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        low, high = self.box
        self.engine.set(self.possible_agents.index(agent), low + (float(chosen[0]) + 1) / 2 * (high - low))
        self._left -= 1
        if self._left:
            self._select()
            return
        if self.engine.events == self.events:
            self.truncations = dict.fromkeys(self.agents, True)
        self._advance()
        self._accumulate_rewards()

    def _place(self, where: str, agent: str) -> int:
        if agent not in self.agents:
            raise ConfigError(f"PricingEnv.{where}: agent = {agent!r} isn't playing; playing: {self.agents}")
        return self.possible_agents.index(agent)

    def _advance(self) -> None:
        self._turn: Turn = self.engine.advance()
        self._left = len(self._turn.movers)
        self.rewards = dict(zip(self.possible_agents, self.engine.pieces.tolist(), strict=True))
        for i, factor in zip(self._turn.movers, self._turn.factors, strict=True):
            self.infos[self.possible_agents[i]] = {"time": self._turn.time, "factor": float(factor)}
        self._select()

    def _select(self) -> None:
        self.agent_selection = self.possible_agents[self._turn.movers[len(self._turn.movers) - self._left]]
