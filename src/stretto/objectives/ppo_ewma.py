"""PPO-EWMA."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.clipped import Clipped
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import Reference, log_ratio, ratio
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("ppo-ewma")
@dataclass(frozen=True, kw_only=True)
class PPOEWMA(Clipped):
    """max(-A exp(logp - adj), -A exp(clamp(logp - lE, log(1 - clip_low), log(1 + clip_high)) + lE - adj)) (arXiv
    2110.00641), adj = sg(max(logp_behavior, logp - log cap)).

    lE is the log-probability under an exponentially weighted average of the policies: ``batch.logp_old``, filled by
    the ``ewma`` route (``stretto.objectives.ewma``). The trust region is anchored there; the ratio to the behaviour
    only corrects, and ``cap`` (100, as published) bounds it. Clip 0.2 as published. With beta / (1 - beta) = the
    tokens' mean staleness the average stands in for the policy that sampled [inferred].
    """

    cap: float = 100.0
    reference: Reference = "old"

    old_route: ClassVar[str] = "ewma"
    aliases: ClassVar[dict[str, tuple[str, ...]]] = Clipped.aliases | {"C": ("cap",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.cap >= 1, f"cap = {self.cap} must be at least 1")
        self.require(self.reference == "old", "the average's log-probabilities are logp_old: reference = 'old'")
        self.require(self.dual_clip is None, "dual_clip is no part of PPO-EWMA: leave it out")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate about the average, with the capped ratio to the behaviour."""
        behavior, average = batch.need("logp_behavior", "logp_old")
        now = logp.detach()
        adj = torch.maximum(behavior, now - math.log(self.cap)).detach()
        d = log_ratio(now, average, batch.mask)
        lowest = math.log1p(-self.clip_low) if self.clip_low < 1 else -math.inf
        highest = math.log1p(self.clip_high)
        binds = torch.where(advantages > 0, d > highest, (d < lowest) & (advantages < 0))
        clipped = d.clamp(lowest, highest) + log_ratio(average.detach(), adj, batch.mask)
        free = log_ratio(logp, adj, batch.mask)
        surrogate = ratio(torch.where(binds, clipped, free)) * advantages
        metrics = off_policy(batch, log_ratio(now, behavior, batch.mask), ratio(free))
        metrics.clipped(binds, batch.mask)
        metrics.capped(behavior < adj, batch.mask)
        return -surrogate, metrics
