"""Masked importance sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.gate import inside, veto
from stretto.objectives.ratio import at_level, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.rejecting import Rejecting, rows_where
from stretto.objectives.weighted import Weighted


@REGISTRY.register("mis")
@dataclass(frozen=True, kw_only=True)
class MIS(Rejecting, Weighted):
    """-sg(w 1[low <= x <= high]) A logp, x = numerator / behaviour at ``level``: token, sequence (product) or
    geometric (length-invariant). Rejected tokens stay in the denominator (verl's rollout correction; IcePop, arXiv
    2510.18855).

    ``weights``: ``gated`` w = x (default), ``token`` w = the token's own ratio, ``none`` w = 1 (pure rejection).
    ``veto``: one token with a ratio below it drops its sequence; 0 is off.

    ``baseline_over``: at a level above the token a rejected row isn't in its group's baseline (``kept``; decided by the
    policy at the start of the step, a forward pass); with gates on tokens, veto included, rows stay (``all``, as TRL
    and verl take it). Either can be chosen.
    """

    numerator: Literal["auto", "current", "proximal"] = "auto"
    low: float = 0.5
    high: float = 2.0
    weights: Literal["gated", "token", "none"] = "gated"
    veto: float = 1e-4

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Weighted.aliases | {"lo": ("low",), "hi": ("high",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.low < self.high, f"need 0 <= low < high, got {self.low} and {self.high}")
        self.require(0 <= self.veto <= 1, f"veto = {self.veto} must lie in [0, 1] (0: off; the ratio on policy is 1)")

    @property
    def rejects(self) -> bool:
        return self.level != "token" or self.veto > 0

    @property
    def decides_by_row(self) -> bool:
        return self.level != "token"

    def kept_rows(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        token = self.at_start(batch, logp)
        kept = torch.ones_like(batch.mask)
        if self.level != "token":
            kept = inside(at_level(token, batch, self.level), self.low, self.high)
        if self.veto > 0:
            kept = kept & veto(token, batch.mask, self.veto)
        return rows_where(kept, batch.mask)

    def weight(self, token: Tensor, level: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kept = inside(level, self.low, self.high)
        if self.veto > 0:
            kept = kept & veto(token, mask, self.veto)
        if self.weights == "none":
            w = torch.ones_like(level)
        else:
            w = ratio(level if self.weights == "gated" else token)
        return torch.where(kept, w, 0.0), kept, torch.zeros_like(kept)
