"""Step sizes of TD: constant, or decreasing without knowing the accuracy or the end."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.tabular.arguments import number


@dataclass(frozen=True)
class Steps:
    """eta_t = min(top, h / (t + t0)), t = 1, 2, ... ``h`` inf: constant at ``top``. Raises ``ConfigError`` for a step
    outside (0, 1] or a negative ``t0``."""

    top: float = 1.0
    h: float = math.inf
    t0: float = 0.0

    def __post_init__(self) -> None:
        number("Steps", "top", self.top, high=1, above=0)
        if self.h != math.inf:
            number("Steps", "h", self.h, above=0)
        number("Steps", "t0", self.t0, 0)

    def at(self, t: ArrayLike) -> Floats:
        """Step sizes eta_t [...] of transitions ``t`` [...], counted from 1."""
        return np.minimum(self.top, self.h / (np.asarray(t, np.float64) + self.t0))


def constant(eta: float) -> Steps:
    """The rule that takes the step size ``eta`` at every transition."""
    return Steps(top=eta)


def tuned(eps: float, horizon: float, c: float = 1.0) -> Steps:
    """The constant step for accuracy ``eps``: c eps^2/H^2. The scaling is inferred, and so is ``c`` = 1 [inferred]."""
    eps, horizon = number("tuned", "eps", eps, high=1, above=0), number("tuned", "horizon", horizon, 1)
    return Steps(top=number("tuned", "c", c, above=0) * eps**2 / horizon**2)


def decreasing(h: float, t0: float | None = None) -> Steps:
    """The rule min(1, h/(t + t0)) for transition t = 1, 2, ..; ``t0`` None: 2 h [inferred]."""
    h = number("decreasing", "h", h, above=0)
    return Steps(1.0, h, 2 * h if t0 is None else number("decreasing", "t0", t0, 0))


def untuned(horizon: float, least_mass: float, c_h: float = 1.0) -> Steps:
    """The decreasing step that knows neither accuracy nor end: h = c_h H/mu_min, ``least_mass`` = mu_min the smallest
    stationary probability, ``c_h`` = 1 and t0 = 2h [inferred]."""
    horizon = number("untuned", "horizon", horizon, 1)
    least_mass = number("untuned", "least_mass", least_mass, high=1, above=0)
    return decreasing(number("untuned", "c_h", c_h, above=0) * horizon / least_mass)
