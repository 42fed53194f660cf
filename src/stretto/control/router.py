"""Routers: which engine serves a group?"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.control.hooks import ROUTER
from stretto.control.view import View


@ROUTER.register("least-loaded")
@dataclass(frozen=True)
class LeastLoaded:
    """The engine with the fewest trajectories; among equals the newest version, then the first name."""

    def route(self, view: View) -> str | None:
        """Name of the engine, None if none is up with a version."""
        best = None
        best_key: tuple[int, int] | None = None
        for name, engine in view.engines.items():
            if engine.up and engine.version is not None:
                key = (engine.trajectories, -engine.version)
                if best_key is None or key < best_key:
                    best, best_key = name, key
        return best
