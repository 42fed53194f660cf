"""GSPO."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.clipped import Clipped
from stretto.objectives.gate import ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import Reference, at_level, log_ratio, ratio, reference_logp
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("gspo")
@dataclass(frozen=True, kw_only=True)
class GSPO(Clipped):
    """mean_i -min(s A, clip(s, 1 - clip_low, 1 + clip_high) A), s_i = exp(mean_t(logp - reference)): one
    length-normalised ratio a sequence, the same for all its tokens; A is averaged over the sequence (arXiv 2507.18071,
    eq. 5-7).

    Widths 3e-4 and 4e-4 [inferred: widely quoted]: a mean over many tokens hardly moves. ``reference``: ``proximal``
    (the trainer's policy at the start of the step, as published; stale data then goes uncorrected when a batch makes
    one optimizer step), ``behavior`` (corrects) or ``old``. Where a row's s is clipped, the whole row has no gradient.
    """

    clip_low: float = 3e-4
    clip_high: float = 4e-4
    reference: Reference = "proximal"
    aggregation: Aggregation = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference == "proximal":
            object.__setattr__(self, "corrects", False)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate of the sequence, negated, at each of its tokens."""
        d = log_ratio(logp, reference_logp(batch, self.reference), batch.mask)
        mean = advantages.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)
        surrogate, binds = ppo_clip(
            ratio(at_level(d, batch, "geometric")), mean.expand_as(d), self.clip_low, self.clip_high, self.dual_clip
        )
        metrics = off_policy(batch, d)
        metrics.clipped(binds, batch.mask)
        return -surrogate, metrics
