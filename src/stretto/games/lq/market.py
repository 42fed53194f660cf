"""How firms that don't know of each other learn: what a run of the Cournot market is made of, and what it gives.

Each firm sees the price and its own quantity. It explores now and then, fits p' = a0 + a1 p + bb q by least squares,
and at its own times takes the gain that is optimal for that model. Constants and options are [inferred].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats, Ints
from stretto.games.lq.cournot import Cournot, nash_gains
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import array, number

Clock = Literal["fixed", "poisson", "geometric"]
Memory = Literal["all", "forget", "doubling"]
EXPLORE, ACTION, RING, NOISE = 0, 1, 2, 3
"""Streams of random numbers; firm i's draws of the first three at step t stand at t firms + i, the noise at t."""


@dataclass(frozen=True)
class Learners:
    """How the firms learn.

    ``nu``, ``e0``: a firm explores at step t with probability min(1, e0 t^-nu), and in the first ``warmup`` steps.
    ``centred``: explore around the greedy quantity, + U[-width, width], clipped; else uniformly on [0, q_max].
    ``periods``: steps between a firm's updates, one a firm (one number: all). ``clock``: ``fixed`` (when the step's
    number divides), ``geometric`` (each step with probability 1/period) or ``poisson`` (a step in which a Poisson
    process of that mean gap rings). ``published``: firms see the total output too. ``memory``: ``all`` keeps the
    whole history; ``forget`` multiplies its sums by ``forget`` a step; ``doubling`` keeps the data since the power
    of two before the last. ``ridge``: added to the diagonal. ``start``: the first (K0, K1) of every firm.
    """

    nu: float = 0.5
    e0: float = 1.0
    centred: bool = False
    width: float = 1.0
    periods: tuple[int, ...] = (50, 70)
    clock: Clock = "fixed"
    published: bool = False
    memory: Memory = "all"
    forget: float = 0.9999
    ridge: float = 1e-6
    warmup: int = 30
    start: tuple[float, float] = (-1.0, 0.0)

    def __post_init__(self) -> None:
        where = "Learners"
        for name in ("nu", "e0"):
            number(where, name, getattr(self, name), 0)
        object.__setattr__(self, "warmup", int(number(where, "warmup", self.warmup, 0, whole=True)))
        number(where, "width", self.width, above=0)
        number(where, "ridge", self.ridge, above=0)
        number(where, "forget", self.forget, above=0, high=1)
        array(where, "start", self.start, (2,))
        if self.memory not in ("all", "forget", "doubling"):
            raise ConfigError(f"{where}: memory = {self.memory!r} must be 'all', 'forget' or 'doubling'")
        periods = array(where, "periods", np.atleast_1d(self.periods), (None,)).tolist()
        gaps_of(where, periods, self.clock, len(periods))
        object.__setattr__(self, "periods", tuple(int(x) for x in periods))

    def gaps(self, firms: int) -> tuple[Ints, Floats]:
        """When ``firms`` firms update: ``gaps_of`` these periods and this clock."""
        return gaps_of("Learners", self.periods, self.clock, firms)

    def exploration(self, steps: int) -> Floats:
        """Probability [steps] that a firm explores at each step."""
        t = np.arange(steps, dtype=float)
        with np.errstate(divide="ignore"):
            rates = np.minimum(1.0, self.e0 * t**-self.nu) if self.e0 else np.zeros(steps)
        rates[: int(self.warmup)] = 1.0
        return rates


@dataclass(frozen=True)
class Learned:
    """What came out, one row a seed. ``gains`` [seeds, checkpoints, firms, 2] after ``checkpoints`` steps. Means per
    step over the whole run: ``profit``, ``consumer`` surplus, ``hhi`` (of the quantities of each step that has any)
    [seeds], ``profits`` [seeds, firms]. ``price`` [seeds]: the last one. ``kept`` [seeds]: updates whose Riccati
    equation had no solution, so that the firm kept its gain."""

    model: Cournot
    checkpoints: Ints
    gains: Floats
    profits: Floats
    consumer: Floats
    hhi: Floats
    price: Floats
    kept: Ints

    @property
    def profit(self) -> Floats:
        """Industry profit, the sum over firms, mean per step [seeds]."""
        return np.asarray(self.profits.sum(1))

    @property
    def total(self) -> Floats:
        """Total surplus, industry profit plus consumer surplus, mean per step [seeds]."""
        return np.asarray(self.profit + self.consumer)

    def errors(self, target: ArrayLike | None = None) -> Floats:
        """Largest distance [seeds, checkpoints] of a gain from ``target`` [firms, 2] (None: the Nash equilibrium)."""
        goal = (
            nash_gains(self.model)
            if target is None
            else array("Learned.errors", "target", target, (self.model.firms, 2))
        )
        return np.asarray(np.abs(self.gains - goal).max((2, 3)))


def checkpoints_of(where: str, steps: int, checkpoints: Sequence[int] | None) -> tuple[int, Ints]:
    """``steps`` as a whole number and increasing ``checkpoints`` within 1..steps (None: the last step)."""
    count = int(number(where, "steps", steps, 1, whole=True))
    try:
        marks = np.asarray([count] if checkpoints is None else checkpoints)
    except ValueError:
        marks = np.empty(0)
    if marks.ndim != 1 or not len(marks) or not np.issubdtype(marks.dtype, np.integer):
        raise ConfigError(f"{where}: checkpoints must be whole numbers, at least one")
    if marks[0] < 1 or marks[-1] > count or (np.diff(marks) <= 0).any():
        raise ConfigError(f"{where}: checkpoints must increase within 1..{count}")
    return count, marks.astype(np.int64)


def frozen_of(where: str, frozen: Sequence[int], players: int) -> list[int]:
    """``frozen`` as players of 0 .. ``players`` - 1; ``ConfigError`` if one isn't."""
    given = array(where, "frozen", frozen, (None,)).tolist()
    if any(i not in range(players) for i in given):
        raise ConfigError(f"{where}: frozen {tuple(frozen)} must be players of 0..{players - 1}")
    return [int(i) for i in given]


def gaps_of(where: str, periods: Sequence[int], clock: Clock, players: int) -> tuple[Ints, Floats]:
    """Periods int64 [players] (0 where random), and the chance [players] that a random clock rings in a step.
    ``ConfigError``: an unknown clock, a period below 1, neither one period nor one a player."""
    if clock not in ("fixed", "poisson", "geometric"):
        raise ConfigError(f"{where}: clock = {clock!r} must be 'fixed', 'poisson' or 'geometric'")
    checked = [int(number(where, "periods", p, 1, whole=True)) for p in np.atleast_1d(periods)]
    if not checked:
        raise ConfigError(f"{where}: periods must hold at least one number")
    if len(checked) not in (1, players):
        raise ConfigError(f"{where}: periods {tuple(checked)} must be one number or one for each of {players} players")
    gaps = np.broadcast_to(np.array(checked, np.int64), (players,)).copy()
    if clock == "fixed":
        return gaps, np.zeros(players)
    return np.zeros(players, np.int64), np.asarray(1 / gaps if clock == "geometric" else -np.expm1(-1 / gaps))
