"""What a router may decide besides: which engine gets each request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, runtime_checkable

from stretto.control.hooks import Router
from stretto.control.view import View


@runtime_checkable
class Placement(Protocol):
    """What a router may decide besides: where each request goes. One that doesn't leaves all requests of a group with
    the engine that the group was routed to; those of a group that is pinned to a version stay there anyway."""

    def place(self, view: View, trajectory: int, engine: str) -> str:
        """Name of the engine that gets the next request of this trajectory, which was on ``engine``. It must hold no
        older version than that of the trajectory's last token: versions never decrease."""
        ...


def placement(router: object, view: View) -> Callable[[int, str], str] | None:
    """How this router places requests (trajectory, engine -> engine); None: it doesn't."""
    return partial(router.place, view) if isinstance(router, Placement) else None


def redirection(router: Router, view: View) -> Callable[[int], str | None]:
    """Where a request goes whose engine has died: to the one that the router would give a group, if it holds no older
    version than that of the trajectory's last token (the argument); None: it waits until its engine is back."""
    return lambda least: router.route(view, [version for version in view.versions if version >= least])
