"""Policy mirror descent of Kimi."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import Reference, log_ratio, reference_logp
from stretto.objectives.referenced import Referenced
from stretto.objectives.registry import REGISTRY

OWN = declare(
    __name__,
    Metric(Section.METHOD, "pmd/pull", "nats²", "`kimi-pmd`: the quadratic pull to the reference"),
)  # fmt: skip


@REGISTRY.register("kimi-pmd")
@dataclass(frozen=True, kw_only=True)
class KimiPMD(Referenced):
    """-A logp + (tau/2) (logp - reference)^2, A = R - mean_g (Kimi k1.5, arXiv 2501.12599, eq. 3).

    No ratio: a quadratic pull back to ``reference`` instead, so that the gradient is -(A - tau d) grad logp, d = logp -
    reference, and vanishes at d = A / tau. ``tau`` = 0.1 [inferred]. ``reference``: ``proximal`` (the trainer's policy
    at the start of the step; stale data then goes uncorrected), ``behavior`` or ``old``.
    """

    tau: float = 0.1
    reference: Reference = "proximal"
    std: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.tau < math.inf, f"tau = {self.tau} must be at least 0 and finite")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        d = log_ratio(logp, reference_logp(batch, self.reference), batch.mask)
        metrics = Metrics()
        if batch.logp_behavior is not None:
            metrics = off_policy(batch, log_ratio(logp.detach(), batch.logp_behavior, batch.mask))
        metrics.share("pmd/pull", 0.5 * self.tau * d.detach().square(), batch.mask.sum())
        return 0.5 * self.tau * d.square() - advantages * torch.where(batch.mask, logp, 0.0), metrics
