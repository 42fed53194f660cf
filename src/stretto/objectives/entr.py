"""ENTR: the entropy-normalised trust region."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.clipped import Clipped
from stretto.objectives.metrics import Metrics
from stretto.objectives.ratio import log_ratio
from stretto.objectives.regions import entropy_region
from stretto.objectives.registry import REGISTRY

OWN = declare(
    __name__,
    Metric(Section.METHOD, "staleness/{inside,after}", "versions", "`entr`: between a trajectory's first and last "
           "token, and from there to the training version"),
)  # fmt: skip


@REGISTRY.register("entr")
@dataclass(frozen=True, kw_only=True)
class Entr(Clipped):
    """-M min(r A, clip(r) A), M = 1[(log r)^2 / (H + eps) <= tau], r = current / behaviour (arXiv 2607.22186; its first
    version says ESTR).

    H is the entropy of the behaviour distribution as the engine recorded it, in nats: a log-ratio's natural scale
    grows with it. Masked tokens stay in the denominator. Clip 0.2 / 0.28 as published. ``tau`` is unpublished, so it
    has no default: choose it so that ``gate/masked_tokens`` is 0.1 to 1 % [inferred]; infinity is PPO's surrogate.
    ``eps`` 0.01 [inferred].
    """

    tau: float
    eps: float = 0.01
    clip_high: float = 0.28

    reads_entropy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.tau >= 0, f"tau = {self.tau} must be at least 0")
        self.require(0 < self.eps < math.inf, f"eps = {self.eps} must be above 0")
        self.require(self.reference == "behavior", "the region belongs to the behaviour policy: reference = 'behavior'")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """PPO's surrogate inside the region, 0 outside."""
        behavior, entropy = batch.need("logp_behavior", "entropy")
        entropy = torch.where(batch.mask, entropy, 0.0)
        loss, metrics = super().token_loss(batch, logp, advantages)
        d = log_ratio(logp.detach(), behavior, batch.mask)
        kept = entropy_region(d, entropy, self.tau, self.eps)
        metrics.masked(~kept, batch.mask)
        version_spread(batch, metrics)
        return torch.where(kept, loss, 0.0), metrics


def version_spread(batch: TokenBatch, metrics: Metrics) -> None:
    """Adds the mean over trajectories of the versions inside (last - first) and after them (learner - last), if the
    batch has versions."""
    if batch.versions is None or not batch.mask.any():
        return
    rows = batch.mask.any(1)
    far = torch.iinfo(torch.int64).max
    index, versions = batch.trajectory_index()[rows], batch.versions[rows].long()
    first = torch.where(batch.mask[rows], versions, far).amin(1)
    last = torch.where(batch.mask[rows], versions, -far).amax(1)
    first = torch.full((batch.trajectories,), far, device=first.device).scatter_reduce(0, index, first, "amin")
    last = torch.full((batch.trajectories,), -far, device=last.device).scatter_reduce(0, index, last, "amax")
    seen = last >= 0
    metrics.share("staleness/inside", (last - first)[seen], seen.sum())
    metrics.share("staleness/after", (batch.version - last)[seen], seen.sum())
