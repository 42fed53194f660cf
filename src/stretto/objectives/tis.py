"""Truncated importance sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.objectives.ratio import ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.weighted import Weighted


@REGISTRY.register("tis")
@dataclass(frozen=True, kw_only=True)
class TIS(Weighted):
    """-sg(min(x, cap)) A logp, x = numerator / behaviour of the token (``level="token"``), of the whole sequence
    (``sequence``: the product) or its geometric mean (``geometric``) (Ionides 2008; verl's rollout correction).
    ``floor``: two-sided variant, x clamped to [floor, cap] (0.5 and 2 are usual).
    """

    numerator: Literal["auto", "current", "proximal"] = "auto"
    cap: float = 2.0
    floor: float = 0.0

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Weighted.aliases | {
        "C": ("cap",),
        "lo": ("floor",),
        "hi": ("cap",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.floor < self.cap, f"need 0 <= floor < cap, got {self.floor} and {self.cap}")

    def weight(self, token: Tensor, level: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = ratio(level)
        weight = x.clamp(self.floor, self.cap)
        return weight, torch.ones_like(mask), weight != x
