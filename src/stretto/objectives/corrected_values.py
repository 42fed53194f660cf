"""Methods whose critic and advantages are corrected for stale data (not a method by itself)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.objectives.base import Baseline, Objective
from stretto.objectives.ratio import log_ratio, ratio


@dataclass(frozen=True, kw_only=True)
class CorrectedValues(Objective):
    """Advantages and the critic's targets come from ``estimate``, which weighs residuals by ratios to the behaviour
    policy, frozen for the whole step. Needs a critic and the log-probabilities at the start of the step."""

    baseline: Baseline = "gae"
    std: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.baseline == "gae", "its estimator is its own and needs a critic: leave baseline = 'gae'")

    @property
    def needs(self) -> frozenset[str]:
        """A critic, and the policy at the start of the step."""
        return super().needs | {"values", "start"}

    def estimate(self, batch: TokenBatch, w: Tensor) -> tuple[Tensor, Tensor]:
        """(targets, advantages) [B,T] given the ratios ``w`` [B,T]."""
        raise NotImplementedError

    def target_policy(self, batch: TokenBatch, logp: Tensor | None) -> Tensor | None:
        """Log-probabilities [B,T] of the policy that values are corrected towards: the current one, or that at the
        start of the step."""
        return batch.logp_proximal if logp is None else logp

    def ratios(self, batch: TokenBatch, logp: Tensor | None) -> Tensor:
        """w [B,T], detached: target policy / behaviour; 1 where masked."""
        (behavior,) = batch.need("logp_behavior")
        target = self.target_policy(batch, logp)
        if target is None:
            raise DataError(
                f"objective {self.component_name!r} weighs advantages by ratios: give logp, or TokenBatch.logp_proximal"
            )
        return ratio(log_ratio(target.detach(), behavior, batch.mask))

    def normalised(self, advantages: Tensor, mask: Tensor) -> Tensor:
        """What ``std`` does to advantages [B,T] (zeros where masked)."""
        return advantages

    def advantages(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        batch = self.present(batch)
        with torch.no_grad():
            return self.normalised(self.estimate(batch, self.ratios(batch, logp))[1], batch.mask)

    def targets(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        batch = self.present(batch)
        with torch.no_grad():
            return self.estimate(batch, self.ratios(batch, logp))[0]
