"""TOPR."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.ratio import at_level, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.weighted import Weighted


@REGISTRY.register("topr")
@dataclass(frozen=True, kw_only=True)
class TOPR(Weighted):
    """A > 0: -A logp; A < 0: -sg(clip(r, 0, 1)) A logp, r = numerator / behaviour (tapered off-policy REINFORCE,
    arXiv 2503.14286).

    Good samples are learnt at full weight however old; bad ones fade once the policy has left them, so that pushing
    them down never runs away. ``level="sequence"`` takes r of the whole response.
    """

    def gate(
        self, batch: TokenBatch, numerator: Tensor, d: Tensor, advantages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = ratio(at_level(d, batch, self.level))
        weight = torch.where(advantages < 0, x.clamp(max=1.0), 1.0)
        return weight, torch.ones_like(batch.mask), weight != x
