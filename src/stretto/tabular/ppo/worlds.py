"""Layered worlds: finite-horizon MDPs given by arrays, whose every layer has moves and rewards of its own."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stretto.data.arrays import Floats
from stretto.tabular.arguments import array, number, probabilities
from stretto.tabular.mdp import MDP


@dataclass(frozen=True, eq=False)
class Layered:
    """An undiscounted MDP of H layers. ``transitions`` [H, S, A, S']: chance of each next state; ``rewards`` [H, S, A]:
    mean rewards; ``start`` [S]: law of the first state; observed rewards carry normal noise of deviation ``noise``.
    After the last layer nothing follows (its moves lead out of the world and never matter).

    Raises ``ConfigError`` on rows that don't sum to one, other shapes, numbers that aren't finite, a negative noise.
    """

    transitions: Floats
    rewards: Floats
    start: Floats
    noise: float = 0.0

    def __post_init__(self) -> None:
        transitions = probabilities("Layered", "transitions", self.transitions, (None, None, None, None))
        layers, states, actions, _ = transitions.shape
        transitions = probabilities("Layered", "transitions", transitions, (layers, states, actions, states))
        object.__setattr__(self, "transitions", transitions)
        object.__setattr__(self, "rewards", array("Layered", "rewards", self.rewards, (layers, states, actions)))
        object.__setattr__(self, "start", probabilities("Layered", "start", self.start, (states,)))
        object.__setattr__(self, "noise", number("Layered", "noise", self.noise, 0))

    @property
    def layers(self) -> int:
        """H, the number of layers: steps of an episode."""
        return self.transitions.shape[0]

    @property
    def states(self) -> int:
        """S, the number of states of each layer."""
        return self.transitions.shape[1]

    @property
    def actions(self) -> int:
        """A, the number of actions in every state."""
        return self.transitions.shape[2]

    def uniform(self) -> Floats:
        """The policy [H, S, A] that takes every action with probability 1/A."""
        return np.full(self.rewards.shape, 1 / self.actions)


def layered(
    seed: int = 0, layers: int = 4, states: int = 4, actions: int = 3, mix: float = 0.3, noise: float = 0.5
) -> Layered:
    """A random world in which every policy visits each state of every layer but the first with probability at least
    ``mix`` / S, however many layers there are (the covered family: ``layers`` = 2, 4, 8, 16); the first is uniform.

    Moves are Dirichlet(1) rows, mixed with the uniform law; rewards uniform on [0, 1). [inferred]: the published
    abstract names layered tabular MDPs and a growing-horizon family, no instance.
    """
    sizes = [("layers", layers), ("states", states), ("actions", actions)]
    h, s, a = (int(number("layered", name, size, 1, whole=True)) for name, size in sizes)
    mix = number("layered", "mix", mix, 0, 1)
    rng = np.random.default_rng(int(number("layered", "seed", seed, 0, whole=True)))
    transitions = (1 - mix) * rng.dirichlet(np.ones(s), size=(h, s, a)) + mix / s
    return Layered(transitions, rng.random((h, s, a)), np.full(s, 1 / s), noise)


def lock(layers: int, actions: int = 3) -> Layered:
    """The contrast to ``layered``: coverage falls as A^-h. State 0 is good, state 1 a sink without reward. Action 0
    keeps the good state, all others fall into the sink; action 0 in the good state of the last layer pays 1. No
    noise, start in the good state [inferred]."""
    h = int(number("lock", "layers", layers, 1, whole=True))
    a = int(number("lock", "actions", actions, 2, whole=True))
    transitions = np.zeros((h, 2, a, 2))
    transitions[:, 0, 0, 0] = 1
    transitions[:, 0, 1:, 1] = 1
    transitions[:, 1, :, 1] = 1
    rewards = np.zeros((h, 2, a))
    rewards[-1, 0, 0] = 1
    return Layered(transitions, rewards, np.array([1.0, 0.0]))


def unrolled(mdp: MDP, layers: int, noise: float = 0.0) -> Layered:
    """The first ``layers`` steps of a stationary MDP, undiscounted: the same moves and rewards in every layer. With
    ``stretto.tabular.gym.read_mdp`` this takes a Gymnasium environment that publishes its table."""
    h = int(number("unrolled", "layers", layers, 1, whole=True))
    transitions = np.broadcast_to(mdp.transitions, (h, *mdp.transitions.shape))
    return Layered(transitions, np.broadcast_to(mdp.rewards, (h, *mdp.rewards.shape)), mdp.start, noise)
