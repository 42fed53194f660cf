"""Elastic rules: which workers change role?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.control.actions import RoleChange
from stretto.control.hooks import ELASTIC
from stretto.control.view import View


@ELASTIC.register("fixed")
@dataclass(frozen=True)
class Fixed:
    """Every worker keeps its role."""

    def decide(self, view: View) -> Sequence[RoleChange]:
        """Nothing changes."""
        return ()
