"""What TD does exactly: covariances for late times, the best that any estimator can do, hitting times.

At V* the TD error is a martingale difference, so no long-run covariance of the chain enters: with D = diag(mu),
A = D (I - gamma P) and sigma^2(s) = Var(r + gamma V*(s') | s), all follows from A and diag(mu sigma^2). ``moments``
gives the exact law of the first two moments at any finite time.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number
from stretto.tabular.chains import hitting_times, stationary, time_reversal
from stretto.tabular.td.process import RewardProcess


def drift(process: RewardProcess) -> Floats:
    """A = D (I - gamma P) [S,S]: the mean update at V is -eta A (V - V*). ``ConfigError`` for a reducible chain."""
    mu = stationary(process.transitions)
    return np.asarray(mu[:, None] * (np.eye(process.states) - process.gamma[:, None] * process.transitions))


def late_covariance(process: RewardProcess, h: float) -> Floats:
    """lim T Cov(V_T) [S,S] under steps h/t: solves (hA - I/2) C + C (hA - I/2)^T = h^2 diag(mu sigma^2).
    ``ConfigError`` unless h Re lambda_min(A) > 1/2: smaller steps forget the start too slowly for the rate 1/T."""
    h = number("late_covariance", "h", h, above=0)
    a = drift(process)
    least = float(np.linalg.eigvals(a).real.min())
    if h * least <= 0.5:
        raise ConfigError(f"late_covariance: h = {h:g} is too small: the rate 1/T needs h > {0.5 / least:.4g}")
    shifted = h * a - 0.5 * np.eye(process.states)
    return np.asarray(
        solve_continuous_lyapunov(shifted, h**2 * np.diag(stationary(process.transitions) * process.noise()))
    )


def constant_covariance(process: RewardProcess) -> Floats:
    """lim Cov(V)/eta [S,S] in the stationary regime of a small constant step: solves A C + C A^T = diag(mu sigma^2)."""
    return np.asarray(
        solve_continuous_lyapunov(drift(process), np.diag(stationary(process.transitions) * process.noise()))
    )


def efficiency_bound(process: RewardProcess) -> Floats:
    """T Cov [S,S] that no estimator from one trajectory beats, and that the plug-in estimator and averaged TD attain:
    (I - gamma P)^-1 diag(sigma^2/mu) (I - gamma P)^-T."""
    inverse = np.linalg.inv(np.eye(process.states) - process.gamma[:, None] * process.transitions)
    return np.asarray(inverse * (process.noise() / stationary(process.transitions)) @ inverse.T)


def best_h(process: RewardProcess, state: int | None = None) -> tuple[float, float]:
    """The h of steps h/t with the smallest limit of T Var: of ``state``, or (None) of the worst state; and that limit.
    By bounded search over log h."""
    from scipy.optimize import minimize_scalar

    place = None if state is None else int(number("best_h", "state", state, 0, process.states - 1, whole=True))
    least = 0.5 / float(np.linalg.eigvals(drift(process)).real.min())

    def worst(log_h: float) -> float:
        spread = np.diag(late_covariance(process, float(np.exp(log_h))))
        return float(spread.max() if place is None else spread[place])

    bounds = (np.log(least * (1 + 1e-6)), np.log(least * 100))
    found = minimize_scalar(worst, bounds=bounds, method="bounded", options={"xatol": 1e-9})
    return float(np.exp(found.x)), float(found.fun)


def worst_reverse_hitting_time(transitions: Floats) -> float:
    """The longest expected time, over pairs of states, in which the chain run backwards goes from one to the other."""
    return float(hitting_times(time_reversal(transitions)).max())
