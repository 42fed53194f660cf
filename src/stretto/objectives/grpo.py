"""GRPO and its usual variants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.clipped import Clipped
from stretto.objectives.gate import sequence_kept
from stretto.objectives.metrics import Metrics
from stretto.objectives.ratio import log_ratio, reference_logp
from stretto.objectives.registry import REGISTRY
from stretto.objectives.rejecting import Rejecting, rows_where


@REGISTRY.register("grpo")
@dataclass(frozen=True, kw_only=True)
class GRPO(Rejecting, Clipped):
    """mean_i (1/n_i) sum_t -min(r A, clip(r) A), A = (R - mean_g) / (std_g + 1e-6), r = current / behaviour
    (arXiv 2402.03300, without the reference KL).

    Variants: ``std=false`` no division; ``baseline="leave-one-out"`` RLOO's; Dr.GRPO (arXiv 2503.20783) is
    ``std=false, aggregation="const", max_length=<longest response>``; DAPO (arXiv 2503.14476) is
    ``clip_high=0.28, aggregation="token-mean"``. The reference of the ratio is the behaviour policy, so stale
    tokens are weighted by their ratio and clipped: the method corrects.

    ``opsm_delta``: drop a sequence with A < 0 whose tokens became less likely than under the reference by more than
    this many nats on average (off-policy sequence masking); off by default, the value [inferred]. Dropped tokens stay
    in the denominator. Whom to drop depends on A, so A is taken over ``all`` rows (``baseline_over``; ``auto``, as
    published); ``kept`` takes it once more over those that were not dropped.
    """

    aggregation: Aggregation = "seq-mean-token-mean"
    opsm_delta: float | None = None

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Clipped.aliases | {"delta": ("opsm_delta",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        below = self.opsm_delta is not None and self.opsm_delta < 0
        self.require(not below, f"opsm_delta = {self.opsm_delta} must be at least 0 nats")
        if self.reference == "proximal":
            object.__setattr__(self, "corrects", False)

    @property
    def rejects(self) -> bool:
        return self.opsm_delta is not None

    def kept_rows(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        assert self.opsm_delta is not None
        d = log_ratio(logp, self._reference(batch, logp), batch.mask)
        a = replace(self, baseline_over="all").advantages(batch, logp)
        return rows_where(sequence_kept(d, a, batch.mask, self.opsm_delta), batch.mask)

    def _reference(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """That of the ratio; at the start of the step the proximal policy is the current one."""
        missing = self.reference == "proximal" and batch.logp_proximal is None
        return logp if missing else reference_logp(batch, self.reference)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate, negated, of the sequences that are kept."""
        x, metrics = super().token_loss(batch, logp, advantages)
        if self.opsm_delta is None:
            return x, metrics
        d = log_ratio(logp.detach(), reference_logp(batch, self.reference), batch.mask)
        kept = sequence_kept(d, advantages, batch.mask, self.opsm_delta)
        metrics.kept(kept, batch.mask)
        return torch.where(kept, x, 0.0), metrics
