"""Where a worker's own seconds lie on this process's clock."""

from __future__ import annotations

import math

_DRIFT = 1e-4
"""By how much two clocks may differ in speed: a second in three hours."""


class WorkerTime:
    """A worker reports durations since its start, which needs no clock in common. Nothing arrives before it was said:
    of all moments at which the worker's start must have been at the latest, the earliest is nearest to the truth."""

    def __init__(self) -> None:
        self._start = math.inf
        self._heard = self._until = 0.0

    def heard(self, now: float, said_s: float) -> None:
        """A message arrives ``now``; the worker said it ``said_s`` seconds after its start."""
        self._start = min(now - said_s, self._start + _DRIFT * (now - self._heard))
        self._heard = now

    def at(self, since_start_s: float) -> float:
        """When that was on this process's clock. Something must have been heard before."""
        return self._start + since_start_s

    def span(self, since_s: float, until_s: float) -> tuple[float, float]:
        """From when to when that was, not before the end of the span that was asked for before."""
        began = max(self._until, self.at(since_s))
        self._until = max(began, self.at(until_s))
        return began, self._until
