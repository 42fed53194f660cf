"""Filters: is a finished group dropped before it becomes ready?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.control.hooks import FILTER
from stretto.data.variance import all_equal


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
    """Drop a group whose raw valid rewards are all equal up to rounding (dynamic sampling, DAPO, arXiv 2503.14476), as
    the learner's baselines judge it. Groups of fewer than two valid rewards have no variance to judge and stay."""

    def drop(self, rewards: Sequence[float]) -> str | None:
        """The reason, or None."""
        if len(rewards) >= 2 and all_equal(min(rewards), max(rewards)):
            return "all rewards equal"
        return None
