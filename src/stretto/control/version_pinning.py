"""Version rules: which version serves a group?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.config.schema import RunConfig
from stretto.control.guarantees import Guarantee
from stretto.control.hooks import VERSION_PINNING
from stretto.control.view import View


def may_pin(config: RunConfig) -> bool:
    """May a group be promised a version? Then engines hold each one until nobody can ask for it."""
    return config.control.in_flight == "pin" or config.control.version_pinning.name != "latest"


@VERSION_PINNING.register("latest")
@dataclass(frozen=True)
class Latest:
    """Whatever the engine has loaded, token by token (in-place updates)."""

    guarantees: ClassVar = frozenset({Guarantee.LOADED_VERSION})

    def assign(self, view: View, engine: str) -> int | None:
        """None: not pinned."""
        return None


@VERSION_PINNING.register("pinned")
@dataclass(frozen=True)
class Pinned:
    """The version that the engine holds when the group starts, to the end of each trajectory (as DORA's C1)."""

    guarantees: ClassVar = frozenset({Guarantee.LOADED_VERSION, Guarantee.ONE_VERSION})

    def assign(self, view: View, engine: str) -> int | None:
        """The engine's version."""
        return view.engines[engine].version
