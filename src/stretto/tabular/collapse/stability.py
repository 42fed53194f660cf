"""Why stale gradients become unstable: three toy models with exact limits (for arXiv 2607.01083)."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError


def cycle_factor(sync_interval: int, rate: float, curvature: float) -> float:
    """1 - S rate h: what one cycle of S steps does to x when its gradient h x is frozen at the cycle's start.
    Stable iff its magnitude is below 1, that is S rate h < 2."""
    return 1 - sync_interval * rate * curvature


def frozen_cycles(x: float, sync_interval: int, rate: float, curvature: float, cycles: int) -> float:
    """x after ``cycles`` cycles of ``sync_interval`` gradient steps, each with the gradient at the cycle's start,
    taken step by step: ``cycle_factor`` to the power ``cycles``, times x."""
    for _ in range(cycles):
        frozen = curvature * x
        for _ in range(sync_interval):
            x -= rate * frozen
    return x


def lag_limit(lag: int) -> float:
    """2 sin(pi / (2 (2 lag + 1))): x_{t+1} = x_t - a x_{t-lag} is stable iff 0 < a < this; a (2 lag + 1) tends to
    pi. ``ConfigError`` on a negative lag."""
    if lag < 0:
        raise ConfigError(f"lag_limit: lag = {lag} must be at least 0")
    return 2 * math.sin(math.pi / (2 * (2 * lag + 1)))


def lag_companion(lag: int, step: float) -> Floats:
    """Companion matrix [lag+1, lag+1] of x_{t+1} = x_t - step x_{t-lag}, on (x_t, ..., x_{t-lag})."""
    matrix = np.eye(lag + 1, k=-1)
    matrix[0, 0] += 1
    matrix[0, lag] -= step
    return matrix


def spectral_radius(matrix: Floats) -> float:
    """Largest magnitude of an eigenvalue of ``matrix`` [n, n]: a linear recursion with this matrix is stable iff it is
    below 1."""
    return float(np.abs(np.linalg.eigvals(matrix)).max())


def exit_budget(k: float, start: float, exit: float) -> float:
    """F(exit) - F(start), F(x) = (s + ln(u / (1 + s))) / k with u = k x, s = sqrt(1 + u^2): the sum of step sizes
    after which dx = rate k x / sqrt(1 + (k x)^2), a drift that saturates, has carried x from ``start`` to ``exit``.
    """

    def antiderivative(x: float) -> float:
        u = k * x
        s = math.sqrt(1 + u * u)
        return (s + math.log(u / (1 + s))) / k

    if not (k > 0 and 0 < start < exit):
        raise ConfigError(f"exit_budget: need k > 0 and 0 < start < exit, got k = {k}, {start} and {exit}")
    return antiderivative(exit) - antiderivative(start)


def spent_budget(k: float, start: float, exit: float, sync_interval: int, rate: float) -> float:
    """The sum of step sizes (rate times steps) until x first reaches ``exit``, simulated, with the x that drives the
    drift refreshed every ``sync_interval`` steps."""
    exit_budget(k, start, exit)  # the same inputs are bad ones
    if sync_interval < 1 or not rate > 0:
        raise ConfigError(f"spent_budget: need sync_interval >= 1 and rate > 0, got {sync_interval} and {rate}")
    return float(rate * _steps_to_exit(k, start, exit, sync_interval, rate))


@njit(cache=True)
def _steps_to_exit(k: float, start: float, exit: float, sync_interval: int, rate: float) -> int:
    x = start
    steps = 0
    drift = 0.0
    while x < exit:
        if steps % sync_interval == 0:
            u = k * x
            drift = rate * u / math.sqrt(1 + u * u)
        x += drift
        steps += 1
    return steps
