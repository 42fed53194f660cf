"""The strategic layer: one softmax policy over joint assignments for each season, moved once a block of episodes.

    every period   adv = R_S - base[z]; base[z] += track adv; grad[z] += adv (onehot(m) - softmax(theta[z]))
    every block k  theta += scale / sqrt(1 + k) * grad / periods            (theta is frozen inside the block)
    R_S = 1 - overlap + coupling * food / steps;   overlap = sum_quadrants min(share_1, share_2)

The food term couples the layers: it is what the tactical learners make of the assignment. Constants are [inferred].
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number


def overlap(shares: ArrayLike) -> float:
    """``shares`` [2, quadrants]: the share of a period's steps that each forager spent in each quadrant; 1 if both
    spent them alike, 0 if no quadrant saw both."""
    both = array("overlap", "shares", shares, (2, None))
    return float(sum(min(a, b) for a, b in zip(both[0], both[1], strict=True)))


def strategic_reward(shares: ArrayLike, food: float, steps: int, coupling: float) -> float:
    """The strategist's reward of a period of ``steps`` steps in which both foragers together ate ``food``: 1 - overlap
    of their ``shares`` [2, quadrants] + coupling food / steps."""
    return 1.0 - overlap(shares) + coupling * food / number("strategic_reward", "steps", steps, 1, whole=True)


class Strategist:
    """A softmax over ``arms`` for each of ``states`` global states. ``scale``: of the step sizes scale / sqrt(1 + k).
    ``track``: rate of the baseline. ``ConfigError`` names a bad argument."""

    def __init__(self, states: int = 2, arms: int = 16, scale: float = 30.0, track: float = 0.02) -> None:
        states = int(number("Strategist", "states", states, 1, whole=True))
        arms = int(number("Strategist", "arms", arms, 2, whole=True))
        self.scale = number("Strategist", "scale", scale, 0)
        self.track = number("Strategist", "track", track, 0, 1)
        self.theta: Floats = np.zeros((states, arms))
        self.base: Floats = np.zeros(states)
        self.grad: Floats = np.zeros((states, arms))
        self.blocks = self.seen = 0

    def policy(self, z: int) -> Floats:
        """Probabilities [arms] of the joint assignments in global state ``z``."""
        top = max(self.theta[z])
        weights = np.array([math.exp(x - top) for x in self.theta[z]])
        total = 0.0
        for w in weights:  # in this order: the compiled loop adds alike
            total += w
        return weights / total

    def choose(self, z: int, u: float) -> int:
        """The joint assignment in 0 .. arms - 1 that ``u`` in [0, 1) picks in global state ``z``."""
        total = 0.0
        p = self.policy(z)
        for arm, share in enumerate(p):
            total += share
            if u < total:
                return arm
        return len(p) - 1  # the shares add up to a little less than 1

    def note(self, z: int, arm: int, reward: float) -> None:
        """Take in a period's outcome: it moves the baseline of ``z`` at once, theta only at ``update``. ``ConfigError``
        for a state or arm that doesn't exist."""
        number("Strategist.note", "z", z, 0, len(self.theta) - 1, whole=True)
        number("Strategist.note", "arm", arm, 0, self.theta.shape[1] - 1, whole=True)
        number("Strategist.note", "reward", reward)
        advantage = reward - self.base[z]
        self.base[z] += self.track * advantage
        p = self.policy(z)
        for m in range(len(p)):
            self.grad[z, m] += advantage * ((m == arm) - p[m])
        self.seen += 1

    def update(self) -> None:
        """End a block: move theta along what was noted since the last one. ``ConfigError`` if nothing was."""
        if self.seen == 0:
            raise ConfigError("Strategist.update: no period was noted since the last update; note() each period first")
        self.theta += self.scale / math.sqrt(1 + self.blocks) * self.grad / self.seen
        self.grad[:] = 0.0
        self.blocks, self.seen = self.blocks + 1, 0
