"""SAPO."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio, reference_logp
from stretto.objectives.referenced import Referenced
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("sapo")
@dataclass(frozen=True, kw_only=True)
class SAPO(Referenced):
    """-(4/tau) sigmoid(tau (r - 1)) A, r = current / ``reference``; tau = ``tau_pos`` where A > 0, else ``tau_neg``
    (soft adaptive policy optimisation, arXiv 2511.20347).

    The gradient's multiplier is r 4 p (1 - p), p = sigmoid(tau (r - 1)): 1 at r = 1, fading smoothly on both sides
    instead of a clip. tau 1.0 and 1.05: tokens with A < 0 fade sooner.
    """

    tau_pos: float = 1.0
    tau_neg: float = 1.05
    aggregation: Aggregation = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tau_pos", "tau_neg"):
            tau = getattr(self, name)
            self.require(0 < tau < math.inf, f"{name} = {tau} must be above 0 and finite")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        d = log_ratio(logp, reference_logp(batch, self.reference), batch.mask)
        r = ratio(d)
        tau = torch.full_like(r, self.tau_neg).masked_fill(advantages > 0, self.tau_pos)
        soft = torch.sigmoid(tau * (r - 1))
        fades = (4 * soft * (1 - soft)).detach()
        metrics = off_policy(batch, d, fades * r.detach())
        metrics.kept(fades, batch.mask)
        return -(4 / tau * soft * advantages), metrics
