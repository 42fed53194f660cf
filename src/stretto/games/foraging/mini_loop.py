"""Learning in Mini-CHMAS: a compiled loop, seeds in parallel.

    for k = 1..K:  N_f pulls with pi = softmax(theta): R = base + coupling skill + noise; skill += rate (gain - skill)
                   theta += step / sqrt(k) * mean over the pulls of R (onehot(m) - pi)

Pull p takes draw p of stream ``SEASON``, of ``ARM`` and (a normal one) of ``PAY``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.foraging.mini import Mini
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import distinct_seeds, number
from stretto.tabular.counter import key, normal, uniform
from stretto.tabular.threads import start_threads

SEASON, ARM, PAY = range(3)


@dataclass(frozen=True)
class Climb:
    """S runs. ``updates`` [C]: checkpoints k. ``squared`` [S, C]: mean of the exact |grad J|^2 at theta_1 .. theta_k.
    ``error`` [S]: tracking error at the end of an update's pulls, mean of the first ``early`` updates. ``theta``
    [S, Z, M], ``visits`` [S, Z, M]: at the end."""

    updates: Ints
    squared: Floats
    error: Floats
    theta: Floats
    visits: Ints


def climb(
    model: Mini, seeds: Iterable[int], updates: ArrayLike, pulls: int = 1, step: float = 2.0, early: int = 1000
) -> Climb:
    """Learn until the last of the checkpoints ``updates`` (rising, >= 1); ``pulls``: N_f. ``ConfigError`` names a bad
    argument."""
    seed, at = distinct_seeds("climb", list(seeds)), _rising(updates)
    number("climb", "pulls", pulls, 1, whole=True)
    number("climb", "step", step, above=0)
    number("climb", "early", early, 1, whole=True)
    shape = (seed.size, *model.base.shape)
    out = Climb(at, np.zeros((seed.size, at.size)), np.zeros(seed.size), np.zeros(shape), np.zeros(shape, np.int64))
    fixed = (float(model.coupling), float(model.rate), float(model.noise), int(pulls), float(step), int(early))
    start_threads()
    _all(seed, at, model.base, model.gain, fixed, out.squared, out.error, out.theta, out.visits)
    return out


def _rising(updates: ArrayLike) -> Ints:
    at = np.atleast_1d(np.asarray(updates))
    whole = at.ndim == 1 and at.size > 0 and np.issubdtype(at.dtype, np.integer)
    if not whole or at[0] < 1 or (np.diff(at) <= 0).any():
        raise ConfigError(f"climb: updates = {updates!r} must be rising whole numbers >= 1")
    return np.ascontiguousarray(at, np.int64)


@njit(cache=True, parallel=True)
def _all(
    seeds: Ints, at: Ints, base: Floats, gain: Floats, fixed: tuple[float, float, float, int, float, int],
    squared: Floats, error: Floats, theta: Floats, visits: Ints,
) -> None:  # fmt: skip
    for s in prange(seeds.size):
        _one(seeds[s], at, base, gain, fixed, squared[s], error[s : s + 1], theta[s], visits[s])


@njit(cache=True)
def _one(
    seed: int, at: Ints, base: Floats, gain: Floats, fixed: tuple[float, float, float, int, float, int],
    squared: Floats, error: Floats, theta: Floats, visits: Ints,
) -> None:  # fmt: skip
    coupling, rate, noise, pulls, step, early = fixed
    season, choice, pay = key(seed, SEASON), key(seed, ARM), key(seed, PAY)
    seasons, arms = base.shape
    skill, policy, grad = np.zeros((seasons, arms)), np.empty((seasons, arms)), np.zeros((seasons, arms))
    total, point, pull = 0.0, 0, 0
    for k in range(1, at[-1] + 1):
        for z in range(seasons):
            mean = _softmax(theta[z], policy[z], base[z], gain[z], coupling)
            for m in range(arms):
                total += (policy[z, m] * (base[z, m] + coupling * gain[z, m] - mean) / seasons) ** 2
        if k == at[point]:
            squared[point] = total / k
            point += 1
        for _ in range(pulls):
            z = int(uniform(season, pull) * seasons)
            u, below, m = uniform(choice, pull), policy[z, 0], 0
            while m < arms - 1 and u >= below:
                m += 1
                below += policy[z, m]
            reward = base[z, m] + coupling * skill[z, m] + noise * normal(pay, pull)
            for n in range(arms):
                grad[z, n] += reward * ((n == m) - policy[z, n])
            skill[z, m] += rate * (gain[z, m] - skill[z, m])
            visits[z, m] += 1
            pull += 1
        for z in range(seasons):
            for m in range(arms):
                if k <= early:
                    error[0] += policy[z, m] * abs(gain[z, m] - skill[z, m]) / seasons
                theta[z, m] += step / math.sqrt(k) * grad[z, m] / pulls
        grad[:] = 0.0
    error[0] /= min(early, at[-1])


@njit(cache=True)
def _softmax(logits: Floats, out: Floats, base: Floats, gain: Floats, coupling: float) -> float:
    """Fill ``out`` with the policy; returns its mean pay at full skill."""
    top, total, mean = logits.max(), 0.0, 0.0
    for m in range(logits.size):
        out[m] = math.exp(logits[m] - top)
        total += out[m]
    for m in range(logits.size):
        out[m] = out[m] / total
        mean += out[m] * (base[m] + coupling * gain[m])
    return mean
