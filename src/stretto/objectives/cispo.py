"""CISPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.objectives.ratio import ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.weighted import Weighted


@REGISTRY.register("cispo")
@dataclass(frozen=True, kw_only=True)
class CISPO(Weighted):
    """-sg(clip(r, 1 - clip_low, 1 + clip_high)) A logp, r = numerator / behaviour (MiniMax-M1, arXiv 2506.13585,
    eq. 4-5).

    The weight is clipped, not the update: every token keeps a gradient. Widths of 0.1 [inferred]; ``clip_low = 1``
    leaves only the upper bound.
    """

    clip_low: float = 0.1
    clip_high: float = 0.1

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Weighted.aliases | {
        "e": ("clip_low", "clip_high"),
        "e_l": ("clip_low",),
        "e_h": ("clip_high",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.clip_low <= 1 and self.clip_high >= 0, "clip_low in [0, 1] and clip_high >= 0")

    def weight(self, token: Tensor, level: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = ratio(level)
        weight = x.clamp(1 - self.clip_low, 1 + self.clip_high)
        return weight, torch.ones_like(mask), weight != x
