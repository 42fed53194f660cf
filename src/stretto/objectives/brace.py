"""BRACE: anchored Bellman-residual correction for stale critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.clipped import Clipped
from stretto.objectives.corrected_values import CorrectedValues
from stretto.objectives.registry import REGISTRY
from stretto.objectives.temporal import brace

VARIANCE_EPSILON = 1e-8
"""Added to the variance in whitening. Not published: our choice."""


@REGISTRY.register("brace")
@dataclass(frozen=True, kw_only=True)
class Brace(CorrectedValues, Clipped):
    """-min(r A, clip(r) A), A_s = r_s + gamma G_{s+1} - V_s whitened, with the critic's targets (arXiv 2609.09783)

    G_s = V_s + sum_{t=s}^{j-1} gamma^{t-s} (prod_{i=s}^{t-1} c_i) rho_t (r_t + gamma V_{t+1} - V_t)
    + (prod_{i=s}^{j-1} c_i) (sum_{t>=j} gamma^{t-s} r_t - gamma^{j-s} V_j), j = min(s + k, T).

    Residuals are corrected over a window of ``k`` policy tokens (rho = min(rho_bar, w), c = lambda min(c_bar, w), w =
    policy at the start of the step / behaviour); beyond it one constant weight carries the realised return, so the
    reward reaches every position. k = 0 is Monte Carlo; k >= T is V-trace but for the last residual's weight, 1.

    Defaults as published: k 100, rho_bar 1.2, c_bar 1.1, clip 0.2 / 0.28, value clip 0.5, whitening (``std``) over the
    step's policy tokens, with sqrt(var + 1e-8) [inferred]. ``reference`` of the actor's ratio: the behaviour policy, or
    the proximal one [inferred].
    """

    std: bool = True
    k: int = 100
    rho_bar: float = 1.2
    c_bar: float = 1.1
    clip_high: float = 0.28
    value_clip: float | None = 0.5

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Clipped.aliases | {"whitening": ("std",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.k >= 0, f"k = {self.k} must be at least 0")
        self.require(self.rho_bar > 0 and self.c_bar > 0, "rho_bar and c_bar must be above 0")
        self.require(
            self.critic_gae_lambda is None, "targets and advantages share gae_lambda: leave critic_gae_lambda out"
        )

    def estimate(self, batch: TokenBatch, w: Tensor) -> tuple[Tensor, Tensor]:
        return brace(batch, w, self.k, self.rho_bar, self.c_bar, self.gamma, self.gae_lambda)

    def normalised(self, advantages: Tensor, mask: Tensor) -> Tensor:
        return whitened(advantages, mask) if self.std else advantages


def whitened(advantages: Tensor, mask: Tensor) -> Tensor:
    """(A - mean) / sqrt(var + 1e-8) [B,T] over the policy tokens, population variance; 0 where masked."""
    n = mask.sum().clamp(min=1)
    mean = torch.where(mask, advantages, 0.0).sum(dtype=torch.float64) / n
    centred = torch.where(mask, advantages - mean.to(advantages.dtype), 0.0)
    variance = centred.square().sum(dtype=torch.float64) / n
    return centred / (variance + VARIANCE_EPSILON).sqrt().to(advantages.dtype)
