"""Masked importance sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.errors import ConfigError
from stretto.objectives.gate import inside, veto
from stretto.objectives.ratio import ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.weighted import Weighted


@REGISTRY.register("mis")
@dataclass(frozen=True, kw_only=True)
class MIS(Weighted):
    """-sg(w 1[low <= x <= high]) A logp, x = numerator / behaviour at ``level``: token, sequence (product) or
    geometric (length-invariant). Rejected tokens stay in the denominator (verl's rollout correction; IcePop, arXiv
    2510.18855).

    ``weights``: ``gated`` w = x (default), ``token`` w = the token's own ratio, ``none`` w = 1 (pure rejection).
    ``veto``: one token with a ratio below it drops its sequence; 0 is off.
    """

    numerator: Literal["auto", "current", "proximal"] = "auto"
    low: float = 0.5
    high: float = 2.0
    weights: Literal["gated", "token", "none"] = "gated"
    veto: float = 1e-4

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Weighted.aliases | {"lo": ("low",), "hi": ("high",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low < self.high:
            raise ConfigError(f"objective 'mis': need 0 <= low < high, got {self.low} and {self.high}")
        if not self.veto >= 0:
            raise ConfigError(f"objective 'mis': veto = {self.veto} must be at least 0 (0: off)")

    def weight(self, token: Tensor, level: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept = inside(level, self.low, self.high)
        if self.veto > 0:
            kept = kept & veto(token, mask, self.veto)
        if self.weights == "none":
            w = torch.ones_like(level)
        else:
            w = ratio(level if self.weights == "gated" else token)
        return torch.where(kept, w, 0.0), kept, torch.zeros_like(kept)
