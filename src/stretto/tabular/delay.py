"""Things that arrive later: delays as a function of (seed, step, place), and the line in which they wait.

In steps of whatever loop uses them. Nothing is lost without being counted: put = delivered + expired + pending.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from stretto.errors import ConfigError

Item = TypeVar("Item")
_STREAM = 4


@dataclass(frozen=True)
class Delays:
    """Delays in whole steps, >= 0, of the given ``mean``: ``constant`` (a whole number), ``geometric``
    P(D) = p (1 - p)^D with p = 1 / (1 + mean), or ``poisson``. Raises ``ConfigError`` if there is no such law."""

    law: Literal["constant", "geometric", "poisson"]
    mean: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.law not in ("constant", "geometric", "poisson"):
            raise ConfigError(f"Delays: law = {self.law!r} must be constant, geometric or poisson")
        if not (np.isfinite(self.mean) and self.mean >= 0 and (self.law != "constant" or self.mean == int(self.mean))):
            raise ConfigError(f"Delays: mean = {self.mean} must be at least 0, and whole if constant")

    def draw(self, step: int, size: int) -> NDArray[np.int64]:
        """Delays [size] of what starts at ``step``: a function of (seed, step, place) alone."""
        if self.law == "constant":
            return np.full(size, int(self.mean), np.int64)
        g = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, step, _STREAM]))
        if self.law == "poisson":
            return g.poisson(self.mean, size).astype(np.int64)
        return g.geometric(1 / (1 + self.mean), size).astype(np.int64) - 1


class DelayLine(Generic[Item]):
    """Items that wait for their step. ``lifetime``: an item that would wait for more steps than that is dropped when
    it is put (it counts as ``expired``); None: none is."""

    def __init__(self, lifetime: int | None = None) -> None:
        self.delivered = self.expired = 0
        self._lifetime = lifetime
        self._waiting: list[tuple[int, int, int, Item]] = []  # (due, order of arrival, put at, item)
        self._order = count()

    @property
    def pending(self) -> int:
        """Items that wait."""
        return len(self._waiting)

    def put(self, item: Item, now: int, delay: int) -> None:
        """``item`` is due at step ``now + delay``. Raises ``ConfigError`` if that lies in the past."""
        if delay < 0:
            raise ConfigError(f"DelayLine: delay = {delay} must be at least 0")
        if self._lifetime is not None and delay > self._lifetime:
            self.expired += 1
            return
        heapq.heappush(self._waiting, (now + delay, next(self._order), now, item))

    def due(self, now: int) -> list[tuple[Item, int]]:
        """Takes out what is due at or before ``now``: (item, step at which it was put), earliest first, then in the
        order of arrival."""
        out = []
        while self._waiting and self._waiting[0][0] <= now:
            _, _, put, item = heapq.heappop(self._waiting)
            out.append((item, put))
        self.delivered += len(out)
        return out
