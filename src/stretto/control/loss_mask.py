"""LossMask rules: which sampled tokens count in the loss?"""

from __future__ import annotations

from dataclasses import dataclass

from stretto.control.hooks import LOSS_MASK


@LOSS_MASK.register("all")
@dataclass(frozen=True)
class All:
    """Every token that the policy sampled."""

    def keep(self, tokens: int, turns: int) -> slice:
        """All of them."""
        return slice(None)
