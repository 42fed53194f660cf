"""Things that arrive later: laws of delay, and the one line in which parameters, observations and rewards wait.

In steps or in continuous time, as the loop that uses it counts. The delay of item i is a function of (seed, i), never
of a shared generator, so how often the line is read can't change it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import count
from typing import Generic, Literal, TypeVar

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.tabular.arguments import number

Item = TypeVar("Item")
Law = Literal["constant", "geometric", "poisson", "exponential"]
_STREAM = 4
_BLOCK = 1024
_LONGEST, _LAST_SEED = 1e12, 2.0**64


@dataclass(frozen=True)
class Delays:
    """Delays >= 0 of the given ``mean``: ``constant`` (any real number), ``geometric`` P(D) = q (1 - q)^D on 0, 1, ..
    with q = 1 / (1 + mean), ``poisson``, or, in continuous time, ``exponential`` (rate 1 / mean). ``ConfigError`` if
    there is no such law."""

    law: Law
    mean: float
    seed: int = 0

    def __post_init__(self) -> None:
        if self.law not in ("constant", "geometric", "poisson", "exponential"):
            raise ConfigError(f"Delays: law = {self.law!r} must be constant, geometric, poisson or exponential")
        number("Delays", "mean", self.mean, 0, math.inf if self.law == "constant" else _LONGEST)
        number("Delays", "seed", self.seed, 0, _LAST_SEED, whole=True)

    @property
    def whole(self) -> bool:
        """Whether every delay of this law is a whole number of steps, as loops that count steps need."""
        return self.law in ("geometric", "poisson") or (self.law == "constant" and self.mean == int(self.mean))

    def sample(self, step: int, size: int) -> Ints:
        """Delays [size] of what starts at ``step``: a function of (seed, step, place) alone. ``ConfigError`` for a
        law of continuous time."""
        if not self.whole:
            raise ConfigError(f"Delays: {self.law} with mean = {self.mean} isn't in whole steps")
        size = int(number("Delays.sample", "size", size, 0, whole=True))
        return self._values(int(number("Delays.sample", "step", step, 0, whole=True)), size).astype(np.int64)

    def of(self, item: int) -> float:
        """The delay of item number ``item`` >= 0, in the unit of ``mean``: a function of (seed, item) alone.
        ``ConfigError`` for a negative item."""
        if item < 0:
            raise ConfigError(f"Delays.of: item = {item} must be >= 0")
        if self.law == "constant":
            return self.mean
        return float(self.block(item // _BLOCK)[item % _BLOCK])

    def block(self, number: int) -> Floats:
        """The delays [1024] of items 1024 ``number`` .. 1024 ``number`` + 1023; ``of`` gives the same ones one at a
        time."""
        return self._values(number, _BLOCK, _STREAM + 1)

    def first(self, items: int) -> Floats:
        """The delays [items] of items 0 .. ``items`` - 1 as one array, for compiled loops."""
        items = int(number("Delays.first", "items", items, 0, whole=True))
        blocks = [self.block(b) for b in range(-(-items // _BLOCK))]
        return np.concatenate([*blocks, np.empty(0)])[:items]

    def _values(self, step: int, size: int, stream: int = _STREAM) -> Floats:
        if self.law == "constant":
            return np.full(size, self.mean, np.float64)
        g = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, step, stream]))
        if self.law == "poisson":
            return g.poisson(self.mean, size).astype(np.float64)
        if self.law == "exponential":
            return g.exponential(self.mean, size)
        return g.geometric(1 / (1 + self.mean), size).astype(np.float64) - 1


class DelayLine(Generic[Item]):
    """A line is read in one of two ways: ``latest`` keeps history, ``due`` gives each item out once.

    ``delays``: the law of each item's delay, unless ``push`` is told it. ``initial``: an item that was ready before
    all time (``latest`` starts with it). ``lifetime``: an item whose delay is longer is dropped when it is pushed (it
    counts as ``expired``). pushed = delivered + expired + pending, at any time.
    """

    def __init__(
        self, delays: Delays | None = None, *, initial: Item | None = None, lifetime: float | None = None
    ) -> None:
        self.pushed = self.delivered = self.expired = 0
        self._delays = delays
        self._block: tuple[int, Floats] = (-1, np.empty(0))
        self._lifetime = None if lifetime is None else number("DelayLine", "lifetime", lifetime, 0)
        self._waiting: list[tuple[float, int, float, Item]] = []  # (ready, number, pushed at, item)
        self._order = count()
        self._newest: tuple[int, Item] | None = None if initial is None else (-1, initial)
        self._last_push = self._last_read = -math.inf
        self._mode: str | None = None

    @property
    def pending(self) -> int:
        """How many pushed items have neither been given out nor expired."""
        return len(self._waiting)

    def push(self, t: float, item: Item, delay: float | None = None) -> None:
        """``item`` is ready at ``t`` + its delay. Raises ``ConfigError`` if time runs backwards, if a read has gone
        past ``t``, for a negative delay, and for a line without a law that isn't told the delay."""
        if not t >= self._last_push:
            raise ConfigError(f"DelayLine.push: t = {t} lies before the push at {self._last_push}")
        index = next(self._order)
        delay = self._of(index) if delay is None else number("DelayLine.push", "delay", delay, 0)
        ready = t + delay
        if ready < self._last_read:
            raise ConfigError(
                f"DelayLine.push: t = {t} is ready at {ready}, but the line was read at {self._last_read}"
            )
        self.pushed += 1
        self._last_push = t
        if self._lifetime is not None and delay > self._lifetime:
            self.expired += 1
            return
        heapq.heappush(self._waiting, (ready, index, t, item))

    def latest(self, t: float) -> Item:
        """The most recently pushed item that is ready at ``t``; so never an older one than at an earlier ``t``.
        Raises ``ConfigError`` if nothing is ready yet, or for a ``t`` before the last read (what was ready then is no
        longer kept)."""
        self._reads("latest", t)
        while self._waiting and self._waiting[0][0] <= t:
            _, index, _, item = heapq.heappop(self._waiting)
            self.delivered += 1
            if self._newest is None or index > self._newest[0]:
                self._newest = (index, item)
        if self._newest is None:
            raise ConfigError(f"DelayLine.latest: nothing is ready at t = {t}; give the line an initial item")
        return self._newest[1]

    def due(self, t: float) -> list[tuple[Item, float]]:
        """Takes out what became ready up to ``t``: (item, time at which it was pushed), earliest first, then in the
        order of pushing. Raises ``ConfigError`` for a ``t`` before the last read."""
        self._reads("due", t)
        out = []
        while self._waiting and self._waiting[0][0] <= t:
            _, _, pushed, item = heapq.heappop(self._waiting)
            out.append((item, pushed))
        self.delivered += len(out)
        return out

    def _reads(self, mode: str, t: float) -> None:
        if self._mode not in (None, mode):
            raise ConfigError(f"DelayLine.{mode}: this line is read by {self._mode}; use one line for each")
        if not t >= self._last_read:
            raise ConfigError(
                f"DelayLine.{mode}: t = {t} lies before the last read at {self._last_read}; what was ready then is no "
                "longer kept"
            )
        self._mode, self._last_read = mode, t

    def _of(self, index: int) -> float:
        if self._delays is None:
            raise ConfigError("DelayLine.push: give the line a law of delays, or each item its delay")
        if self._delays.law == "constant":
            return self._delays.mean
        at = index // _BLOCK
        if self._block[0] != at:
            self._block = (at, self._delays.block(at))
        return float(self._block[1][index % _BLOCK])
