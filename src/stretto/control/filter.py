"""Filters: is a finished group dropped before it becomes ready?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.control.hooks import FILTER


@FILTER.register("none")
@dataclass(frozen=True)
class NoFilter:
    """Every group trains; one without variance has zero advantages."""

    def drop(self, rewards: Sequence[float]) -> str | None:
        """Never."""
        return None


@FILTER.register("zero-variance")
@dataclass(frozen=True)
class ZeroVariance:
    """Drop a group whose raw valid rewards are all equal (dynamic sampling, DAPO, arXiv 2503.14476). Groups of fewer
    than two valid rewards have no variance to judge and stay."""

    def drop(self, rewards: Sequence[float]) -> str | None:
        """The reason, or None."""
        if len(rewards) >= 2 and all(r == rewards[0] for r in rewards):
            return "all rewards equal"
        return None
