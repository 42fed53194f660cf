"""PPO's clipped surrogate against the behaviour policy, shared by GRPO and PPO (not a method by itself)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stretto.batch import TokenBatch
from stretto.errors import ConfigError
from stretto.objectives.base import Objective
from stretto.objectives.gate import ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio


@dataclass(frozen=True, kw_only=True)
class Clipped(Objective):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = current / behaviour; ``dual_clip`` c: where A < 0 the
    surrogate is at least c A."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.clip_low <= 1 and self.clip_high >= 0):
            raise ConfigError(f"objective {self.component_name!r}: clip_low in [0, 1] and clip_high >= 0")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(f"objective {self.component_name!r}: dual_clip must be above 1")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        (behavior,) = batch.need("logp_behavior")
        d = log_ratio(logp, behavior, batch.mask)
        surrogate, binds = ppo_clip(ratio(d), advantages, self.clip_low, self.clip_high, self.dual_clip)
        metrics = off_policy(batch, d)
        metrics.share("ppo/clip_fraction", binds & batch.mask, batch.mask.sum())
        return -surrogate, metrics
