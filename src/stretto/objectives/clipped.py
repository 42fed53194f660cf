"""PPO's clipped surrogate, shared by the methods that are built on it (not a method by itself)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.base import Objective
from stretto.objectives.gate import ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import Reference, log_ratio, ratio, reference_logp


@dataclass(frozen=True, kw_only=True)
class Clipped(Objective):
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = current / ``reference``; ``dual_clip`` c: where A < 0 the
    surrogate is at least c A.

    ``reference``: ``behavior`` (default: the ratio corrects for staleness), ``proximal`` (the policy at the start of
    the step: with one optimizer step a batch every ratio is 1 and stale data goes uncorrected) or ``old`` (the
    trainer's policy at the version that sampled the token).
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    reference: Reference = "behavior"

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Objective.aliases | {
        "e": ("clip_low", "clip_high"),
        "e_l": ("clip_low",),
        "e_h": ("clip_high",),
        "c": ("dual_clip",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.clip_low <= 1 and self.clip_high >= 0, "clip_low in [0, 1] and clip_high >= 0")
        self.require(self.dual_clip is None or self.dual_clip > 1, "dual_clip must be above 1")
        if self.reference == "proximal" and type(self).token_loss is Clipped.token_loss:
            object.__setattr__(self, "corrects", False)  # nothing relates the data to the policy that sampled it

    @property
    def needs(self) -> frozenset[str]:
        """The critic's, and the reference's."""
        return super().needs | ({self.reference} - {"behavior"})

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate, negated."""
        d = log_ratio(logp, reference_logp(batch, self.reference), batch.mask)
        surrogate, binds = ppo_clip(ratio(d), advantages, self.clip_low, self.clip_high, self.dual_clip)
        metrics = off_policy(batch, d)
        metrics.clipped(binds, batch.mask)
        return -surrogate, metrics
