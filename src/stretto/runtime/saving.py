"""When a checkpoint is due."""

from __future__ import annotations

from collections.abc import Callable

from stretto.config.schema import RunConfig

_EVERY_S = 300.0
_SHARE = 20
"""What saving takes, at most, is one part in so many of the time."""


class SavePlan:
    """Asked after each step. ``clock``: the loop's, None where time must decide nothing (in virtual time a seed replays
    event for event)."""

    def __init__(self, config: RunConfig, clock: Callable[[], float] | None) -> None:
        self._every, self._clock = config.save_every, clock
        asked = config.save_every_s
        self._every_s = (0.0 if config.save_every else _EVERY_S) if asked is None else asked
        self._next_s = 0.0
        self.restart()

    def restart(self, took_s: float = 0.0) -> None:
        """Count from now: the run begins, or a checkpoint was written, which took so long."""
        if self._clock is not None:
            self._next_s = self._clock() + max(self._every_s, _SHARE * took_s)

    def due(self, version: int) -> bool:
        """Save before the next step, ``version`` being reached?"""
        if self._every and version % self._every == 0:
            return True
        return self._clock is not None and self._every_s > 0 and self._clock() >= self._next_s
