"""A layered world as a Gymnasium environment."""

from __future__ import annotations

import gymnasium

from stretto.kernel.errors import ConfigError
from stretto.tabular.gym_spaces import DiscreteEnv
from stretto.tabular.ppo.worlds import Layered


class LayeredEnv(DiscreteEnv):
    """Episodes of ``world`` (its exact arrays stay readable there). The observation of state s in layer h is h S + s;
    the step of the last layer terminates and observes H S + s. Raises ``ConfigError`` on a step outside an episode or
    an action that doesn't exist."""

    def __init__(self, world: Layered) -> None:
        self.world = world
        self.observation_space = gymnasium.spaces.Discrete((world.layers + 1) * world.states)
        self.action_space = gymnasium.spaces.Discrete(world.actions)
        self._layer, self._state = world.layers, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, object] | None = None
    ) -> tuple[int, dict[str, object]]:
        """Start an episode in a state of layer 0 sampled from ``world.start``; returns (observation, {})."""
        super().reset(seed=seed)
        self._layer, self._state = 0, int(self.np_random.choice(self.world.states, p=self.world.start))
        return self._state, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, object]]:
        """Take ``action`` in the current layer: (observation of the next layer, noisy reward, whether it was the last
        layer, False, {})."""
        world, h, s = self.world, self._layer, self._state
        if h == world.layers:
            raise ConfigError("LayeredEnv: step after the last layer (or before the first episode); call reset")
        if not self.action_space.contains(action):
            raise ConfigError(f"LayeredEnv: action = {action!r} must be a whole number from 0 to {world.actions - 1}")
        reward = float(world.rewards[h, s, action] + world.noise * self.np_random.standard_normal())
        self._state = int(self.np_random.choice(world.states, p=world.transitions[h, s, action]))
        self._layer += 1
        return self._layer * world.states + self._state, reward, self._layer == world.layers, False, {}
