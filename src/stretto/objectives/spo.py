"""SPO: scaled negatives."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.aggregate import Aggregation, mean_nll
from stretto.objectives.asympo import response_scales
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("spo")
@dataclass(frozen=True, kw_only=True)
class SPO(Objective):
    """mean_i s_i A_i l_i, l_i = -(1/n_i) sum_t logp, s_i = 1 where A_i >= 0, else ``negative_scale`` c (arXiv
    2606.03070).

    Needs neither behaviour log-probabilities nor versions. c is unpublished: 0.2 is [inferred] (try 0.1, 0.2, 0.5);
    1 is the plain policy gradient, 0 trains on good responses alone.
    """

    negative_scale: float = 0.2
    aggregation: Aggregation = "seq-mean-token-mean"

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Objective.aliases | {"c": ("negative_scale",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 0 <= self.negative_scale < math.inf
        self.require(fits, f"negative_scale = {self.negative_scale} must be at least 0 and finite")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """-s A logp."""
        metrics = response_scales(batch, logp, mean_nll(logp.detach(), batch.mask), advantages)
        scaled = torch.where(advantages >= 0, advantages, self.negative_scale * advantages)
        return -(scaled * torch.where(batch.mask, logp, 0.0)), metrics
