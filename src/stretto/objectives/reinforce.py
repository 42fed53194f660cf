"""REINFORCE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("reinforce")
@dataclass(frozen=True, kw_only=True)
class Reinforce(Objective):
    """-A logp (Williams 1992), by default with the group's mean as baseline. Doesn't correct for staleness."""

    std: bool = False
    corrects: ClassVar[bool] = False

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        metrics = Metrics()
        if batch.logp_behavior is not None:
            metrics = off_policy(batch, log_ratio(logp.detach(), batch.logp_behavior, batch.mask))
        return -(advantages * torch.where(batch.mask, logp, 0.0)), metrics
