"""SAO: single-rollout asynchronous optimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.advantage import standardised
from stretto.objectives.base import Baseline, Objective
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.temporal import gae, length_adaptive_lambda


@REGISTRY.register("sao")
@dataclass(frozen=True, kw_only=True)
class SAO(Objective):
    """-sg(f(r) A) logp, f(r) = r where 1 - clip_low < r < 1 + clip_high (strictly), else 0; r = current / behaviour
    (arXiv 2607.07508).

    One rollout a prompt, with a critic in the group's place. Tokens outside the interval are dropped for both signs of
    A and stay in the denominator. A is GAE over the policy tokens, from a turn's last token on to the next one's first,
    with lambda = max(0, 1 - 1 / (alpha l)), l the row's policy tokens; the critic's targets have lambda = 1.

    Defaults as published: ``alpha`` 1.5, interval 0.3 / 5.0 (tool-integrated reasoning; coding has 0.8 / 3.0).
    ``alpha`` unset: ``gae_lambda`` for every row. All depends on the critic: pre-train it, and give it two updates per
    actor update (the learner's options). ``baseline = "group"`` is GRPO with the two-sided mask.
    """

    baseline: Baseline = "gae"
    std: bool = False
    alpha: float | None = 1.5
    critic_gae_lambda: float | None = 1.0
    clip_low: float = 0.3
    clip_high: float = 5.0

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Objective.aliases | {
        "e_l": ("clip_low",),
        "e_h": ("clip_high",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.clip_low <= 1 and self.clip_high >= 0, "clip_low in [0, 1] and clip_high >= 0")
        self.require(self.alpha is None or self.alpha > 0, f"alpha = {self.alpha} must be above 0")

    @property
    def idle(self) -> dict[str, str]:
        """``gae_lambda`` beside ``alpha``, ``alpha`` without a critic."""
        if self.baseline != "gae":
            return super().idle | {"alpha": "there is no critic (objective.baseline = 'gae')"}
        return super().idle | (
            {} if self.alpha is None else {"gae_lambda": "alpha decides it (objective.alpha = 'none')"}
        )

    def advantages(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        if self.baseline != "gae" or self.alpha is None:
            return super().advantages(batch, logp)
        batch = self.present(batch)
        with torch.no_grad():
            raw = gae(batch, self.gamma, length_adaptive_lambda(batch.mask, self.alpha))
            return standardised(raw, batch.mask) if self.std else raw

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The score, weighted by the ratio inside the interval."""
        d = log_ratio(logp.detach(), batch.need("logp_behavior")[0], batch.mask)
        weight = two_sided(ratio(d), self.clip_low, self.clip_high)
        metrics = off_policy(batch, d, weight)
        metrics.kept(weight > 0, batch.mask)
        return -(weight * advantages * torch.where(batch.mask, logp, 0.0)), metrics


def two_sided(r: Tensor, low: float, high: float) -> Tensor:
    """f(r) = r where 1 - low < r < 1 + high, both strictly, else 0 (arXiv 2607.07508)."""
    return torch.where((r > 1 - low) & (r < 1 + high), r, 0.0)
