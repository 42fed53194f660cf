"""M2PO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.objectives.gate import second_moment_limit
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import log_ratio, ratio, reference_logp
from stretto.objectives.referenced import Referenced
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("m2po")
@dataclass(frozen=True, kw_only=True)
class M2PO(Referenced):
    """-M r A, r = current / ``reference``: of the step's tokens sorted by d^2 = (log r)^2, largest first, M drops the
    first i, the smallest i for which the mean of d^2 over the rest is below ``threshold`` (second-moment trust policy
    optimisation, arXiv 2510.01161).

    The second moment bounds the chi-squared divergence of the kept tokens, and only outliers go, whatever their sign.
    ``threshold`` tau = 0.04 [inferred: widely quoted]. Tied d^2 go together [inferred], so that the order of rows does
    not matter. Dropped tokens stay in the denominator. The limit is found over the whole optimizer step.
    """

    threshold: float = 0.04

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Referenced.aliases | {"tau": ("threshold",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.threshold > 0, f"threshold = {self.threshold} must be above 0")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | {"statistics"}

    def statistics(self, batch: TokenBatch, logp: Tensor) -> dict[str, Tensor]:
        """``m2_limit``: the smallest d^2 of the step that is dropped."""
        d = log_ratio(logp, reference_logp(batch, self.reference), batch.mask)
        return {"m2_limit": second_moment_limit(d, batch.mask, self.threshold)}

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        if batch.statistics is None:
            raise DataError("m2po: batch.statistics is missing")
        d = log_ratio(logp, reference_logp(batch, self.reference), batch.mask)
        kept = d.detach().double().square() < batch.statistics["m2_limit"]
        r = torch.where(kept, ratio(d), 0.0)
        metrics = off_policy(batch, d, r)
        metrics.kept(kept, batch.mask)
        return -(r * advantages), metrics
