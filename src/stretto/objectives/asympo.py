"""ASymPO."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.aggregate import Aggregation, mean_nll, scale_normalised
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio
from stretto.objectives.registry import REGISTRY

OWN = declare(
    __name__,
    Metric(Section.METHOD, "nll/{positive,negative}", "nats",
           "`asympo`, `spo`: mean negative log-probability of rows with A > 0 and A < 0"),
    Metric(Section.METHOD, "asympo/pressure/{mean,std,max}", "1/nats", "`asympo`: by what a row was scaled"),
)  # fmt: skip


@REGISTRY.register("asympo")
@dataclass(frozen=True, kw_only=True)
class ASymPO(Objective):
    """mean_i A_i l_i / sg(max(l_i, floor)), l_i = -(1/n_i) sum_t logp (arXiv 2606.03070).

    Each response's loss is divided by its own scale: the value is mean A (0 for groups that sum to 0) at any lag, the
    gradient mean_i A_i grad log l_i. Needs neither behaviour log-probabilities nor versions. The pressure on responses
    that are nearly certain doesn't vanish as their loss does: watch ``asympo/pressure`` (1 / l_i). ``floor`` 1e-6
    stands in the denominator only [inferred].
    """

    floor: float = 1e-6
    aggregation: Aggregation = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.floor < math.inf, f"floor = {self.floor} must be above 0 and finite")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """-A logp, divided by the row's mean negative log-probability."""
        scale = mean_nll(logp.detach(), batch.mask)
        metrics = response_scales(batch, logp, scale, advantages)
        rows = batch.mask.any(1)
        metrics.moment("asympo/pressure", 1 / scale[rows].clamp(min=self.floor))
        return scale_normalised(-advantages * torch.where(batch.mask, logp, 0.0), scale, self.floor), metrics


def response_scales(batch: TokenBatch, logp: Tensor, scale: Tensor, advantages: Tensor) -> Metrics:
    """Metrics of methods that look at no behaviour: off-policy ones if the batch has what they need, and the mean
    negative log-probability of good and bad responses (``scale`` [B])."""
    metrics = Metrics()
    if batch.logp_behavior is not None:
        metrics = off_policy(batch, log_ratio(logp.detach(), batch.logp_behavior, batch.mask))
    a = advantages.sum(1) / batch.mask.sum(1).clamp(min=1)
    for name, chosen in (("positive", a > 0), ("negative", a < 0)):
        metrics.share(f"nll/{name}", scale[chosen], chosen.sum())
    return metrics
