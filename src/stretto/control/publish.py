"""Publish rules: which engines load the newest version now?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.config.schema import RunConfig
from stretto.control.hooks import PUBLISH
from stretto.control.view import View
from stretto.kernel.errors import ConfigError


@PUBLISH.register("every-step")
@dataclass(frozen=True)
class EveryStep:
    """Every engine loads every version, or the newest one if it was busy meanwhile."""

    def check(self, config: RunConfig) -> None:
        """Works with any configuration."""

    def engines(self, view: View) -> Sequence[str]:
        """Engines that are behind."""
        return [e.name for e in view.engines.values() if e.active and e.version != view.version]


@PUBLISH.register("every-k")
@dataclass(frozen=True)
class EveryK:
    """Engines load each k-th version; one that missed it (it was busy) loads the newest as soon as it can."""

    k: int = 2

    def check(self, config: RunConfig) -> None:
        """k <= lag_bound + 1: new work at the loaded version must still be trainable just before the next load."""
        if self.k < 1:
            raise ConfigError(f"control.publish.k = {self.k}: expected 1 to lag_bound + 1 = {config.lag_bound + 1}")
        if self.k > config.lag_bound + 1:
            raise ConfigError(
                f"control.publish.k = {self.k} with lag_bound = {config.lag_bound}: engines would hold weights that "
                f"are too old for any new work. Set lag_bound >= {self.k - 1} or k <= {config.lag_bound + 1}"
            )

    def engines(self, view: View) -> Sequence[str]:
        """Engines that hold an older stretch of k versions than the newest one (the last version is always due)."""
        due = view.version // self.k * self.k if view.version != view.max_steps else view.version
        return [e.name for e in view.engines.values() if e.active and (e.version is None or e.version < due)]
