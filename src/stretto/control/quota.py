"""Quotas: how much may run at once?"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.control.actions import Limits
from stretto.control.hooks import QUOTA
from stretto.control.view import View
from stretto.kernel.errors import ConfigError


@QUOTA.register("fixed")
@dataclass(frozen=True)
class FixedQuota:
    """Constant limits. ``trajectories``: running trajectories in all, whole groups of them; None: as many as admission
    starts."""

    trajectories: int | None = None

    def __post_init__(self) -> None:
        if self.trajectories is not None and self.trajectories < 1:
            raise ConfigError(f"control.quota.trajectories = {self.trajectories}: expected 1 or more, or none")

    def limits(self, view: View) -> Limits:
        """The same always."""
        return Limits(self.trajectories)
