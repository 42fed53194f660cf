"""What a late critic does, exactly: mean and second moment of its error when the actor stands still.

One (layer, state) is on its own, because Monte Carlo targets don't look at the critic: its error e obeys
e_{t+1} = e_t - beta X_t e_{t-tau} + noise, with X_t = Binomial(n, d) / n the share of the batch that visits it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import solve_discrete_lyapunov

from stretto.data.arrays import Floats
from stretto.tabular.arguments import number
from stretto.tabular.collapse.stability import lag_companion, lag_limit, spectral_radius
from stretto.tabular.ppo.oracle import occupancy, return_variance
from stretto.tabular.ppo.worlds import Layered


def largest_step(world: Layered, policy: ArrayLike, tau: int) -> float:
    """The critic step at which the mean error of the most visited state stops shrinking under a constant delay of
    ``tau`` iterations: 2 sin(pi / (2 (2 tau + 1))) / max d. Stable below it; a step with beta max d (2 tau + 1) <= 1
    (the simple sufficient rule) always is."""
    return lag_limit(_lag("largest_step", tau)) / float(occupancy(world, policy).max())


def mean_growth(world: Layered, policy: ArrayLike, beta: float, tau: int) -> float:
    """Logarithm of the factor by which the mean error grows (below 0: shrinks) an iteration: the largest over (h, s)
    of the log spectral radius of the companion matrix with k = beta d_h(s)."""
    beta = number("mean_growth", "beta", beta, above=0)
    tau = _lag("mean_growth", tau)
    reached = occupancy(world, policy)
    radii = [spectral_radius(lag_companion(tau, beta * float(d))) for d in np.unique(reached[reached > 0])]
    return math.log(max(radii)) if max(radii) > 0 else -math.inf  # 0: one step lands on the target


def sampled_growth(d: float, beta: float, episodes: int) -> float:
    """E log |1 - beta X|, X = Binomial(n, d) / n: the growth of one run's error an iteration without delay. Visits are
    random, so it is less than that of the mean, log |1 - beta d|. -inf where a batch can land on the target exactly.
    """
    d, beta, episodes = _visits("sampled_growth", d, beta, episodes)
    hits = np.arange(episodes + 1)
    logs = [math.lgamma(episodes + 1) - math.lgamma(k + 1) - math.lgamma(episodes - k + 1) for k in hits]
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = np.exp(logs) * d**hits * (1 - d) ** (episodes - hits)
        terms = np.where(chance > 0, chance * np.log(np.abs(1 - beta * hits / episodes)), 0.0)
    return float(terms.sum())


def second_moment_operator(d: float, beta: float, episodes: int, tau: int) -> Floats:
    """E[A kron A], [(tau+1)^2, (tau+1)^2], of the random companion matrix A on (e_t, ..., e_{t-tau}). Its spectral
    radius is below 1 iff the error's variance stays bounded."""
    d, beta, episodes = _visits("second_moment_operator", d, beta, episodes)
    mean = lag_companion(_lag("second_moment_operator", tau), beta * d)
    late = np.zeros_like(mean)
    late[0, -1] = beta
    return np.kron(mean, mean) + d * (1 - d) / episodes * np.kron(late, late)


def stationary_variance(d: float, beta: float, episodes: int, tau: int, variance: float) -> float:
    """E[e^2] in the long run for a state of occupancy ``d`` whose returns have ``variance``; inf where it has no
    bound.

    With W = A W A^T + e_0 e_0^T for the mean matrix A and w = W[0, 0] (equal to W[tau, tau]: the same error, later),
    the equation M = E[A M A^T] + q e_0 e_0^T gives M[0, 0] = q w / (1 - v w), where q = beta^2 d variance / n and
    v = beta^2 d (1 - d) / n. ``tau`` = 0: (beta variance / n) / (2 - beta (d + (1 - d) / n)).
    """
    d, beta, episodes = _visits("stationary_variance", d, beta, episodes)
    variance = number("stationary_variance", "variance", variance, 0)
    tau = _lag("stationary_variance", tau)
    if beta * d >= lag_limit(tau):
        return math.inf
    shock = np.zeros((tau + 1, tau + 1))
    shock[0, 0] = 1
    w = float(solve_discrete_lyapunov(lag_companion(tau, beta * d), shock)[0, 0])
    slack = 1 - beta**2 * d * (1 - d) / episodes * w
    return beta**2 * d * variance / episodes * w / slack if slack > 0 else math.inf


def stationary_critic_error(world: Layered, policy: ArrayLike, beta: float, episodes: int, tau: int) -> float:
    """Sum over (h, s) of d E[e^2]: what the critic error fluctuates around while the actor stands still."""
    number("stationary_critic_error", "beta", beta, above=0)
    d, variance = occupancy(world, policy), return_variance(world, policy)
    pairs = zip(d.ravel(), variance.ravel(), strict=True)
    return sum(float(x) * stationary_variance(float(x), beta, episodes, tau, float(y)) for x, y in pairs if x > 0)


def _lag(where: str, tau: int) -> int:
    return int(number(where, "tau", tau, 0, whole=True))


def _visits(where: str, d: float, beta: float, episodes: int) -> tuple[float, float, int]:
    d = number(where, "d", d, above=0, high=1 + 1e-12)
    episodes = int(number(where, "episodes", episodes, 1, whole=True))
    return min(d, 1.0), number(where, "beta", beta, above=0), episodes
