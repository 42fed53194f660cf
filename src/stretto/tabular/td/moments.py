"""The exact mean and second moment of TD's error after any number of transitions, for every sequence of steps.

With e = V - V*, one transition s -> s' is e <- B e + eta xi 1_s, where B = I + eta 1_s (gamma 1_s' - 1_s)^T and
xi = r + gamma V*(s') - V*(s). It is linear in e, so P(s_t = s), E[e 1{s_t=s}] and E[e e^T 1{s_t=s}] propagate jointly
without approximation, S^2 small products a transition.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.tabular.arguments import array, number
from stretto.tabular.td.process import RewardProcess
from stretto.tabular.td.steps import Steps


@dataclass(frozen=True)
class Moments:
    """After T transitions: ``states`` [S] law of the state, ``mean`` [S] E[e], ``second`` [S,S] E[e e^T]."""

    states: Floats
    mean: Floats
    second: Floats


def moments(process: RewardProcess, steps: Steps | ArrayLike, updates: int, values: ArrayLike = 0.0) -> Moments:
    """Moments of the error V - V* after ``updates`` from V_0 = ``values`` (a number, or [S]) and the process's
    start. ``steps``: a rule, or eta_1 .. eta_T themselves. ``ConfigError`` for other shapes."""
    where = "moments"
    updates = int(number(where, "updates", updates, 0, whole=True))
    etas = steps.at(np.arange(1, updates + 1)) if isinstance(steps, Steps) else steps
    etas = array(where, "steps", etas, (updates,))
    number(where, "smallest of steps", etas.min(initial=0), 0)
    size = process.states
    first = array(where, "values", np.full(size, values) if np.ndim(values) == 0 else values, (size,))
    error = first - process.values()
    law = process.start.copy()
    mean = law[:, None] * error
    second = law[:, None, None] * np.outer(error, error)
    _propagate(process.transitions, process.surprises(), process.gamma, etas, law, mean, second)
    return Moments(law, mean.sum(0), second.sum(0))


@njit(cache=True)
def _propagate(transitions, surprises, gamma, etas, law, mean, second):  # type: ignore[no-untyped-def]
    """In place, as ``stretto.tabular.td.kernel._run`` and for the same reason."""
    size = len(law)
    for t in range(len(etas)):
        eta = etas[t]
        next_law, next_mean, next_second = np.zeros_like(law), np.zeros_like(mean), np.zeros_like(second)
        for s in range(size):
            for after in range(size):
                p = transitions[s, after]
                if p == 0:
                    continue
                xi = eta * surprises[s, after]
                m, c = mean[s].copy(), second[s].copy()
                shift = eta * (gamma[s] * m[after] - m[s])
                across = eta * (gamma[s] * c[after] - c[s])  # eta w^T E[e e^T], w = gamma 1_s' - 1_s
                square = eta * (gamma[s] * across[after] - across[s])
                c[s] += across + xi * m
                c[:, s] += across + xi * m
                c[s, s] += square + 2 * xi * shift + xi * xi * law[s]
                m[s] += shift + xi * law[s]
                next_law[after] += p * law[s]
                next_mean[after] += p * m
                next_second[after] += p * c
        law[:], mean[:], second[:] = next_law, next_mean, next_second
