"""The objectives by name. Importing this is light: the methods (and torch) load on first use."""

from __future__ import annotations

from typing import Any

from stretto.components import Registry

METHODS = ("reinforce", "grpo", "ppo", "decoupled_ppo", "tis", "mis")
"""One module a method, in this package."""

REGISTRY: Registry[Any] = Registry("objective", tuple(f"stretto.objectives.{name}" for name in METHODS))
