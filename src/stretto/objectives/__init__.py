"""Objectives: pure tensor functions, ratio -> gate -> advantage -> aggregation. One small file a method.

``get("tis", cap=2.0)`` builds one, ``names()`` lists all. An objective is called as
``objective(batch, logp, values=None, advantages=None) -> Loss(total, policy, critic, metrics)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stretto.objectives.registry import REGISTRY

if TYPE_CHECKING:
    from stretto.objectives.base import Objective as Objective
    from stretto.objectives.loss import Loss as Loss

__all__ = ["REGISTRY", "get", "names"]


def get(name: str, **options: object) -> Objective:
    """The objective called ``name`` (or at ``module:Class``); ``ConfigError`` on an unknown name or option."""
    return REGISTRY.build(name, options)


def names() -> list[str]:
    """All objectives, sorted."""
    return REGISTRY.names()


def __getattr__(name: str) -> type[Objective] | type[Loss]:
    if name == "Objective":
        from stretto.objectives.base import Objective

        return Objective
    if name == "Loss":
        from stretto.objectives.loss import Loss

        return Loss
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
