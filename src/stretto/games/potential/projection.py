"""The KL projection onto the simplex with a floor: what keeps every action explored."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number


def kl_project(q: ArrayLike, floor: float) -> Floats:
    """argmin KL(p || q) over the simplex with p >= ``floor``: p = max(floor, c q), with the one c for which p sums to
    one. ``q`` [..., A]: nonnegative weights, each row with a positive sum (need not be one). ``ConfigError`` for a
    floor below 0 or above 1/A, or for such weights that no projection exists."""
    p = np.array(array("kl_project", "q", q))
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ConfigError("kl_project: q needs at least one weight on its last axis")
    if (p < 0).any() or (p.sum(-1) <= 0).any():
        raise ConfigError("kl_project: q has negative weights or a row without a positive one; give weights >= 0")
    number("kl_project", "floor", floor, 0.0, 1.0 / p.shape[-1])
    rows = p.reshape(1, -1, p.shape[-1])
    _project(rows, floor)
    return rows.reshape(p.shape)


@njit(cache=True)
def project_row(p: Floats, i: int, s: int, count: int, floor: float) -> None:
    """Project the weights p[i, s, :count] in place. All coordinates start active; active ones are scaled to what the
    floors of the others leave; those that fall below the floor become inactive (marked by -1), until none does."""
    inactive = 0
    while inactive < count:
        total = 0.0
        for a in range(count):
            if p[i, s, a] >= 0.0:
                total += p[i, s, a]
        c = (1.0 - floor * inactive) / total
        before = inactive
        for a in range(count):
            if p[i, s, a] >= 0.0 and c * p[i, s, a] < floor:
                p[i, s, a] = -1.0
                inactive += 1
        if inactive == before:
            for a in range(count):
                p[i, s, a] = floor if p[i, s, a] < 0.0 else c * p[i, s, a]
            return
    for a in range(count):  # floor = 1/count: rounding can leave no active coordinate
        p[i, s, a] = floor


@njit(cache=True)
def _project(p: Floats, floor: float) -> None:
    for row in range(p.shape[1]):
        project_row(p, 0, row, p.shape[2], floor)
