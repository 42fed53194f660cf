"""A contextual bandit that its linear policy can't solve: features shared by all actions, rewards unrelated to them.

Everything is an exact expectation in float64: the gradient under the policy that sampled, the return. The best
policy isn't deterministic, so an update that keeps pointing where a stale policy needed it walks off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError

Rule = Literal["none", "is", "clip"]
Optimizer = Literal["sgd", "adam"]
_RULES = {"none": 0, "is": 1, "clip": 2}
_TINY = 1e-12
HIGHEST = 2000.0
"""The largest step size that the search tries."""
LOWEST = -8
"""The search goes down to .02 * 2^(LOWEST/2)."""


@dataclass(frozen=True)
class CollapseBandit:
    """``features`` [contexts, d], ``rewards`` [contexts, actions], ``start`` [d, actions] the initial weights;
    logits are features @ weights, contexts are equally likely."""

    features: Floats
    rewards: Floats
    start: Floats

    def logp(self, weights: Floats) -> Floats:
        """Log-probabilities [contexts, actions] of the linear softmax policy with ``weights`` [d, actions]."""
        logits = self.features @ weights
        logits -= logits.max(1, keepdims=True)
        return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))

    def advantages(self, weights: Floats) -> Floats:
        """Standardised advantages (R - E[R]) / std(R) [contexts, actions], mean and deviation of each context under the
        policy of ``weights`` [d, actions]."""
        p = np.exp(self.logp(weights))
        centred = self.rewards - (p * self.rewards).sum(1, keepdims=True)
        return np.asarray(centred / np.sqrt((p * centred**2).sum(1, keepdims=True) + _TINY))

    def value(self, weights: Floats) -> float:
        """Exact expected reward of the policy of ``weights`` [d, actions], all contexts alike."""
        return float((np.exp(self.logp(weights)) * self.rewards).sum(1).mean())

    def gradient(self, weights: Floats, behavior: Floats, rule: Rule = "none", clip: float = 0.2) -> Floats:
        """Ascent direction [d, actions]: mean over contexts of sum_a mu_a f_a A_a grad log pi_a, mu and A under the
        policy of ``behavior``; f is 1 (``none``: the surrogate without a ratio), pi/mu (``is``), or pi/mu where
        PPO's clip doesn't bind (``clip``)."""
        out = np.zeros_like(weights)
        mu = np.exp(self.logp(behavior))
        _gradient(self.features, weights, mu, self.advantages(behavior), _RULES[rule], clip, out)
        return out


def sample_bandit(seed: int, contexts: int = 24, actions: int = 6, size: int = 6, scale: float = 0.1) -> CollapseBandit:
    """Features N(0,1)/sqrt(size), rewards N(0,1), initial weights ``scale`` N(0,1), drawn in this order."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((contexts, size)) / math.sqrt(size)
    rewards = rng.standard_normal((contexts, actions))
    return CollapseBandit(features, rewards, scale * rng.standard_normal((size, actions)))


def train(
    bandit: CollapseBandit,
    sync_interval: int,
    rate: float,
    steps: int,
    optimizer: Optimizer = "adam",
    rule: Rule = "none",
    clip: float = 0.2,
) -> Floats:
    """Expected reward before each of ``steps`` updates [steps]; behaviour is refreshed every ``sync_interval``."""
    if sync_interval < 1 or not rate > 0 or steps < 1:
        raise ConfigError(f"train: need sync_interval >= 1, rate > 0, steps >= 1; got {sync_interval}, {rate}, {steps}")
    values = np.empty(steps)
    _train(bandit.features, bandit.rewards, bandit.start.copy(), sync_interval, rate, optimizer == "adam",
           _RULES[rule], clip, values)  # fmt: skip
    return values


def reference(bandit: CollapseBandit, steps: int = 1500) -> float:
    """What careful fresh training reaches: the better of two runs with S = 1 and small steps (Adam .03 and .1)."""
    return max(float(train(bandit, 1, rate, steps)[-40:].mean()) for rate in (0.03, 0.1))


def largest_stable_rate(
    bandit: CollapseBandit, sync_interval: int, optimizer: Optimizer = "adam", rule: Rule = "none"
) -> float:
    """Largest step size on the grid .02 * 2^(i/2) whose run ends well; 0 if none does.

    A run ends well when the mean return of its last max(4S, 40) steps is at least .85 of ``reference``. The search
    goes up from .02 to the first failure after a success (at most to ``HIGHEST``), so that runs too slow to learn in
    their steps don't count as failures; if all fail it goes down to the first success [inferred].
    """
    enough = 0.85 * reference(bandit)

    def ends_well(index: int) -> bool:
        rate = _grid(index)
        steps = int(min(3000, max(400, 8 / rate + 8 * sync_interval)))
        tail = train(bandit, sync_interval, rate, steps, optimizer, rule)[-max(4 * sync_interval, 40) :]
        return bool(tail.mean() >= enough)

    best = None
    index = 0
    while _grid(index) <= HIGHEST:
        if ends_well(index):
            best = index
        elif best is not None:
            return _grid(best)
        index += 1
    if best is None:
        best = next((index for index in range(-1, LOWEST - 1, -1) if ends_well(index)), None)
    return 0.0 if best is None else _grid(best)


def _grid(index: int) -> float:
    return 0.02 * 2 ** (index / 2)


def stale_bias(
    bandit: CollapseBandit, sync_interval: int, rate: float, cycles: int, optimizer: Optimizer = "sgd"
) -> Floats:
    """|g(theta; theta_behaviour) - g(theta; theta)| [cycles, S] along a run: how far the stale direction is from
    the fresh one at each step of each cycle."""
    found = np.empty((cycles, sync_interval))
    weights = bandit.start.copy()
    moment, square = np.zeros_like(weights), np.zeros_like(weights)
    for cycle in range(cycles):
        behavior = weights.copy()
        for step in range(sync_interval):
            stale = bandit.gradient(weights, behavior)
            found[cycle, step] = np.linalg.norm(stale - bandit.gradient(weights, weights))
            _update(weights, stale, moment, square, cycle * sync_interval + step, rate, optimizer == "adam")
    return found


@njit(cache=True)
def _softmax(features: Floats, weights: Floats, out: Floats) -> None:
    for c in range(features.shape[0]):
        top = -np.inf
        for a in range(weights.shape[1]):
            total = 0.0
            for i in range(weights.shape[0]):
                total += features[c, i] * weights[i, a]
            out[c, a] = total
            top = max(top, total)
        norm = 0.0
        for a in range(weights.shape[1]):
            out[c, a] = math.exp(out[c, a] - top)
            norm += out[c, a]
        for a in range(weights.shape[1]):
            out[c, a] /= norm


@njit(cache=True)
def _weight(rule: int, ratio: float, advantage: float, clip: float) -> float:
    if rule == 0:
        return 1.0
    if rule == 2 and ((advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip)):
        return 0.0
    return ratio


@njit(cache=True)
def _gradient(
    features: Floats, weights: Floats, mu: Floats, advantages: Floats, rule: int, clip: float, out: Floats
) -> None:
    contexts, actions = mu.shape
    p = np.empty_like(mu)
    _softmax(features, weights, p)
    out[:] = 0
    push = np.empty(actions)
    for c in range(contexts):
        total = 0.0
        for a in range(actions):
            ratio = p[c, a] / max(mu[c, a], 1e-300)
            push[a] = mu[c, a] * advantages[c, a] * _weight(rule, ratio, advantages[c, a], clip)
            total += push[a]
        for a in range(actions):
            score = (push[a] - total * p[c, a]) / contexts
            for i in range(weights.shape[0]):
                out[i, a] += features[c, i] * score


@njit(cache=True)
def _update(
    weights: Floats, gradient: Floats, moment: Floats, square: Floats, step: int, rate: float, adam: bool
) -> None:
    for i in range(weights.shape[0]):
        for a in range(weights.shape[1]):
            g = gradient[i, a]
            if adam:
                moment[i, a] = 0.9 * moment[i, a] + 0.1 * g
                square[i, a] = 0.999 * square[i, a] + 0.001 * g * g
                mean = moment[i, a] / (1 - 0.9 ** (step + 1))
                deviation = math.sqrt(square[i, a] / (1 - 0.999 ** (step + 1)))
                g = mean / (deviation + 1e-8)
            weights[i, a] += rate * g


@njit(cache=True)
def _train(
    features: Floats, rewards: Floats, weights: Floats, sync_interval: int, rate: float, adam: bool, rule: int,
    clip: float, values: Floats,
) -> None:  # fmt: skip
    contexts = len(rewards)
    gradient, moment, square = np.zeros_like(weights), np.zeros_like(weights), np.zeros_like(weights)
    p, mu, advantages = np.empty_like(rewards), np.empty_like(rewards), np.empty_like(rewards)
    for step in range(len(values)):
        _softmax(features, weights, p)
        values[step] = (p * rewards).sum() / contexts
        if step % sync_interval == 0:
            mu[:] = p
            for c in range(contexts):
                mean = (p[c] * rewards[c]).sum()
                deviation = math.sqrt((p[c] * (rewards[c] - mean) ** 2).sum() + _TINY)
                advantages[c] = (rewards[c] - mean) / deviation
        _gradient(features, weights, mu, advantages, rule, clip, gradient)
        _update(weights, gradient, moment, square, step, rate, adam)
