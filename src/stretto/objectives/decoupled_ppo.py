"""Decoupled PPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.batch import TokenBatch
from stretto.errors import ConfigError
from stretto.objectives.clipped import Clipped
from stretto.objectives.gate import inside, ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("decoupled-ppo")
@dataclass(frozen=True, kw_only=True)
class DecoupledPPO(Clipped):
    """-sg(w) min(rho A, clip(rho) A), w = proximal / behaviour, rho = current / proximal (AReaL, arXiv 2505.24298;
    arXiv 2110.00641). Tokens with w > ``cap`` are masked; they stay in the denominator.

    The proximal policy is recomputed at the start of the step: one forward pass with the weights that the step
    starts from. ``baseline`` is the group by default; ``gae`` makes it PPO with a critic.
    """

    cap: float = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cap > 0:
            raise ConfigError(f"objective {self.component_name!r}: cap = {self.cap} must be above 0")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"proximal"}

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        behavior, proximal = batch.need("logp_behavior", "logp_proximal")
        stale = log_ratio(proximal.detach(), behavior, batch.mask)
        kept = inside(stale, 0.0, self.cap) & batch.mask
        weight = torch.where(kept, ratio(stale), 0.0)
        rho = ratio(log_ratio(logp, proximal, batch.mask))
        surrogate, binds = ppo_clip(rho, advantages, self.clip_low, self.clip_high, self.dual_clip)
        metrics = off_policy(batch, log_ratio(logp.detach(), behavior, batch.mask), weight * rho.detach())
        metrics.share("ppo/clip_fraction", binds & kept, batch.mask.sum())
        metrics.share("gate/kept_tokens", kept, batch.mask.sum())
        return -(surrogate * weight), metrics
