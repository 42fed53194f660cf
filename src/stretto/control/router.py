"""Routers: which engine serves a group?"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from stretto.control.hooks import ROUTER
from stretto.control.view import View


@ROUTER.register("least-loaded")
@dataclass(frozen=True)
class LeastLoaded:
    """The engine with the fewest trajectories; among equals the newest version, then the one that came up first."""

    def route(self, view: View, versions: Collection[int]) -> str | None:
        """Name of the engine, None if none is up with one of these versions."""
        if not versions:
            return None
        for _, minus_version, _, name in view.by_load:
            if -minus_version in versions:
                return name
        return None
