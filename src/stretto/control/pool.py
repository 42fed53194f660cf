"""Pool rules: which ready groups are rejected before a batch is formed?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from stretto.control.hooks import POOL
from stretto.control.view import View
from stretto.kernel.errors import ConfigError


@POOL.register("keep")
@dataclass(frozen=True)
class Keep:
    """Reject nothing: admission paces the work so that nothing has to go."""

    def evict(self, view: View) -> Sequence[int]:
        """Nothing."""
        return ()


@POOL.register("drop-oldest")
@dataclass(frozen=True)
class DropOldest:
    """A queue of at most ``capacity`` batches: while a step runs, the oldest ready groups beyond it are rejected
    (the queue of the closed form for mean staleness)."""

    capacity: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.capacity < math.inf:
            raise ConfigError(f"control.pool.capacity = {self.capacity:g}: expected a number of batches, 0 or more")

    def evict(self, view: View) -> Sequence[int]:
        """The oldest ready groups beyond the capacity."""
        excess = len(view.ready) - int(self.capacity * view.batch)
        if not view.training or excess <= 0:
            return ()
        return list(view.ready)[:excess]  # dicts keep the order of completion
