"""Mini-CHMAS: the coupling of both layers in a bandit, with everything exact.

A strategist pulls arm m in season z (uniform) and is paid ``base[z, m] + coupling * skill[z, m]`` and noise; the
tactical layer's skill at (z, m) closes a share ``rate`` of its distance to ``gain[z, m]`` at each visit, so after n
visits it is gain (1 - (1 - rate)^n). What the strategist ought to climb is J at full skill:

    J(theta) = mean_z sum_m softmax(theta_z)_m (base + coupling gain)
    dJ/dtheta[z, m] = p_z softmax(theta_z)_m (r[z, m] - sum_n softmax(theta_z)_n r[z, n]),  p_z = 1 / Z

Bound on the mean of |grad J|^2 over K updates with step c / sqrt(k), from the descent lemma with unbiased gradients
(the skill's lag, which is summable, isn't in it):

    (J* - J_1) / (c sqrt K) + L c s2 (1 + ln K) / (2 sqrt K),  L = 5/2 x range of rewards

(smoothness of a softmax bandit: Mei, Xiao, Szepesvari and Schuurmans, arXiv 2005.06392, Lemma 2). The model and its
constants are [inferred]: CHMAS publishes the rate O(log K / sqrt K) only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.tabular.arguments import array, number

SMOOTHNESS = 2.5  # of a softmax bandit, per unit of reward range


@dataclass(frozen=True)
class Mini:
    """``base``, ``gain`` [Z, M]: an arm's own pay and what full tactical skill adds to it. ``coupling``: weight of
    skill (lambda). ``rate``: of tactical learning, in (0, 1]. ``noise``: standard deviation of pay. ``ConfigError``
    names a bad one."""

    base: Floats
    gain: Floats
    coupling: float = 1.0
    rate: float = 0.2
    noise: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "base", array("Mini", "base", self.base, (None, None)))
        object.__setattr__(self, "gain", array("Mini", "gain", self.gain, self.base.shape))
        number("Mini", "arms", self.base.shape[1], 2)
        number("Mini", "coupling", self.coupling)
        number("Mini", "rate", self.rate, above=0, high=1)
        number("Mini", "noise", self.noise, 0)

    @property
    def rewards(self) -> Floats:
        """Mean pay [Z, M] of each arm in each season once tactical skill is full."""
        return self.base + self.coupling * self.gain

    def policy(self, theta: ArrayLike) -> Floats:
        """Probabilities [Z, M] of the arms in each season: the softmax of ``theta`` [Z, M]."""
        logits = array("Mini.policy", "theta", theta, self.base.shape)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True)

    def value(self, theta: ArrayLike) -> float:
        """J: expected pay of the strategist ``theta`` [Z, M] at full skill, all seasons alike."""
        return float((self.policy(theta) * self.rewards).sum(-1).mean())

    def best(self) -> float:
        """J*, the largest expected pay at full skill: the mean over seasons of the best arm's."""
        return float(self.rewards.max(-1).mean())

    def gradient(self, theta: ArrayLike) -> Floats:
        """Exact gradient dJ/dtheta [Z, M] of ``value``; each season's row sums to 0."""
        p = self.policy(theta)
        mean = (p * self.rewards).sum(-1, keepdims=True)
        return p * (self.rewards - mean) / len(p)

    def ascent(self, updates: int, step: float = 2.0) -> Floats:
        """theta [Z, M] after ``updates`` steps ``step`` / sqrt(k) along the exact gradient from zeros: learning without
        noise and at full skill."""
        number("Mini.ascent", "step", step, above=0)
        theta = np.zeros_like(self.base)
        for k in range(1, int(number("Mini.ascent", "updates", updates, 0, whole=True)) + 1):
            theta += step / math.sqrt(k) * self.gradient(theta)
        return theta

    def skill(self, visits: ArrayLike) -> Floats:
        """What tactical skill adds to each arm's pay [Z, M] after ``visits`` [Z, M]: it approaches ``gain`` at
        ``rate``."""
        n = array("Mini.skill", "visits", visits, self.base.shape)
        return self.gain * (1.0 - (1.0 - self.rate) ** n)

    def tracking_error(self, theta: ArrayLike, visits: ArrayLike) -> float:
        """mean_z sum_m softmax(theta_z)_m |gain - skill|: how far from quasi-stationary the tactical layer is."""
        return float((self.policy(theta) * np.abs(self.gain - self.skill(visits))).sum(-1).mean())

    def second_moment(self) -> float:
        """s2: above the mean squared norm of R (onehot - softmax), of one pull, at every theta and skill: the largest
        mean square pay of each season x (1 - 1/M), as the mean of |onehot - softmax|^2 over its own policy is
        1 - |softmax|^2."""
        ends = np.stack([self.base, self.rewards])  # pay is linear in skill, which stays between 0 and gain
        return float(((ends**2).max(axis=(0, 2)) + self.noise**2).mean() * (1 - 1 / self.base.shape[1]))

    @overload
    def bound(self, updates: float, step: float = 2.0, theta: ArrayLike | None = None) -> float: ...

    @overload
    def bound(self, updates: Sequence[float] | Floats | Ints, step: float = 2.0,
              theta: ArrayLike | None = None) -> Floats: ...  # fmt: skip

    def bound(self, updates: ArrayLike, step: float = 2.0, theta: ArrayLike | None = None) -> float | Floats:
        """The bound at each number of ``updates`` K >= 1 (one number: a number), for steps ``step`` / sqrt(k) from
        ``theta`` (zeros if None)."""
        number("Mini.bound", "step", step, above=0)
        k = array("Mini.bound", "updates", updates)
        number("Mini.bound", "min(updates)", k.min(), 1)
        start = np.zeros_like(self.base) if theta is None else theta
        smooth = SMOOTHNESS * float(np.ptp(self.rewards, axis=-1).max())
        climb = (self.best() - self.value(start)) / (step * np.sqrt(k))
        out: Floats = climb + smooth * step * self.second_moment() * (1 + np.log(k)) / (2 * np.sqrt(k))
        return out if np.ndim(updates) else float(out.item())


def mini(seed: int = 0, seasons: int = 2, arms: int = 8, coupling: float = 1.0) -> Mini:
    """A random small model: pay ``base`` and then ``gain``, both [seasons, arms], uniform on [0, 1) from
    ``default_rng(seed)``."""
    rng = np.random.default_rng(int(number("mini", "seed", seed, 0, whole=True)))
    shape = (int(number("mini", "seasons", seasons, 1, whole=True)), int(number("mini", "arms", arms, 2, whole=True)))
    return Mini(rng.random(shape), rng.random(shape), coupling)
