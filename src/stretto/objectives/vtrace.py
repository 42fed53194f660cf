"""V-trace actor-critic."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.corrected_values import CorrectedValues
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.temporal import vtrace


@REGISTRY.register("vtrace")
@dataclass(frozen=True, kw_only=True)
class VTrace(CorrectedValues):
    """-sg(min(rho_bar, r) A) logp, r = current / behaviour, A_s = r_s + gamma v_{s+1} - V_s (IMPALA, arXiv 1802.01561).

    The critic's targets are v_s = V_s + sum_t gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t (r_t + gamma V_{t+1} - V_t),
    rho = min(rho_bar, w), c = lambda min(c_bar, w), w = policy at the start of the step / behaviour. ``rho_bar``
    decides what is learnt (the value of the policy proportional to min(rho_bar behaviour, target)), ``c_bar`` how fast;
    both 1 as published. Over a long response the products fade: E log(lambda min(c_bar, w)) <= 0 a token where c_bar <=
    1.
    """

    rho_bar: float = 1.0
    c_bar: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.rho_bar > 0 and self.c_bar > 0, "rho_bar and c_bar must be above 0")
        self.require(
            self.critic_gae_lambda is None, "targets and advantages share gae_lambda: leave critic_gae_lambda out"
        )
        self.require(not self.std, "V-trace's advantages aren't standardised: leave std = false")

    def estimate(self, batch: TokenBatch, w: Tensor) -> tuple[Tensor, Tensor]:
        return vtrace(batch, w, self.rho_bar, self.c_bar, self.gamma, self.gae_lambda)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The score, weighted by the truncated ratio."""
        d = log_ratio(logp.detach(), batch.need("logp_behavior")[0], batch.mask)
        r = ratio(d)
        weight = r.clamp(max=self.rho_bar)
        metrics = off_policy(batch, d, weight)
        metrics.truncated(weight != r, batch.mask)
        return -(weight * advantages * torch.where(batch.mask, logp, 0.0)), metrics
