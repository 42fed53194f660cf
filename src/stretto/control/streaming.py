"""Train modes: how many groups does the learner take at a time?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stretto.control.hooks import STREAMING
from stretto.control.view import View


@STREAMING.register("whole")
@dataclass(frozen=True)
class Whole:
    """The whole batch at once."""

    def portions(self, view: View, groups: Sequence[int]) -> Sequence[Sequence[int]]:
        """One portion."""
        return (groups,)
