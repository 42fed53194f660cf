"""GRPO and its usual variants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.batch import TokenBatch
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.clipped import Clipped
from stretto.objectives.gate import sequence_kept
from stretto.objectives.metrics import Metrics
from stretto.objectives.ratio import log_ratio, reference_logp
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("grpo")
@dataclass(frozen=True, kw_only=True)
class GRPO(Clipped):
    """mean_i (1/n_i) sum_t -min(r A, clip(r) A), A = (R - mean_g) / (std_g + 1e-6), r = current / behaviour
    (arXiv 2402.03300, without the reference KL).

    Variants: ``std=false`` no division; ``baseline="leave-one-out"`` RLOO's; Dr.GRPO (arXiv 2503.20783) is
    ``std=false, aggregation="const", max_length=<longest response>``; DAPO (arXiv 2503.14476) is
    ``clip_high=0.28, aggregation="token-mean"``. The reference of the ratio is the behaviour policy, so stale
    tokens are weighted by their ratio and clipped: the method corrects.

    ``opsm_delta``: drop a sequence with A < 0 whose tokens became less likely than under the reference by more than
    this many nats on average (off-policy sequence masking); off by default, the value [inferred]. Dropped tokens stay
    in the denominator.
    """

    aggregation: Aggregation = "seq-mean-token-mean"
    opsm_delta: float | None = None

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Clipped.aliases | {"delta": ("opsm_delta",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference == "proximal":
            object.__setattr__(self, "corrects", False)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate, negated, of the sequences that are kept."""
        x, metrics = super().token_loss(batch, logp, advantages)
        if self.opsm_delta is None:
            return x, metrics
        d = log_ratio(logp.detach(), reference_logp(batch, self.reference), batch.mask)
        kept = sequence_kept(d, advantages, batch.mask, self.opsm_delta)
        metrics.share("gate/kept_tokens", kept & batch.mask, batch.mask.sum())
        return torch.where(kept, x, 0.0), metrics
