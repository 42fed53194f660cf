"""DPPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.gate import bernoulli_kl, moving_away
from stretto.objectives.ratio import at_level, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.weighted import Weighted


@REGISTRY.register("dppo")
@dataclass(frozen=True, kw_only=True)
class DPPO(Weighted):
    """-sg(min(r, cap) M) A logp, r = numerator / behaviour; M = 0 where the update would move the token further away
    (A > 0 and r > 1, or A < 0 and r < 1) and the policies' divergence there exceeds ``threshold`` (divergence proximal
    policy optimisation, arXiv 2602.04879, binary variants).

    ``divergence`` of "this token or another": ``tv`` total variation |p - mu|, or ``kl`` KL(mu || p) in nats. PPO's
    ratio over-penalises rare tokens and lets likely ones shift far; a divergence measures the shift itself.
    ``threshold`` 0.2 for tv [inferred: widely used]; for kl set one (0.05 [inferred]). ``cap`` 20 bounds the weight, as
    in public trainers; where it doesn't bind, the gradient is that of M r A.
    """

    divergence: Literal["tv", "kl"] = "tv"
    threshold: float = 0.2
    cap: float = 20.0

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Weighted.aliases | {"delta": ("threshold",), "C": ("cap",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.threshold >= 0, f"threshold = {self.threshold} must be at least 0")
        self.require(self.cap > 0, f"cap = {self.cap} must be above 0")

    def gate(
        self, batch: TokenBatch, numerator: Tensor, d: Tensor, advantages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (behavior,) = batch.need("logp_behavior")
        if self.divergence == "tv":
            apart = (numerator.exp() - behavior.exp()).abs()
        else:
            apart = bernoulli_kl(behavior, numerator)
        kept = ~(moving_away(d, advantages) & (apart > self.threshold))
        x = ratio(at_level(d, batch, self.level))
        weight = torch.where(kept, x.clamp(max=self.cap), 0.0)
        return weight, kept, kept & (x > self.cap)
