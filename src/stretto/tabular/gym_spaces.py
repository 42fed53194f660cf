"""Gymnasium environments whose spaces are discrete."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Discrete

from stretto.kernel.errors import ConfigError

DiscreteEnv = gymnasium.Env[Any, Any]
"""States and actions are whole numbers: NumPy's as Gymnasium types a ``Discrete`` space, and Python's as environments
hand them out."""


def discrete(what: str, space: object) -> Discrete:
    """``space``, if it is Discrete; else ``ConfigError``, which begins with ``what``."""
    if not isinstance(space, Discrete):
        raise ConfigError(f"{what} {space}; they must be Discrete: number them")
    return space
