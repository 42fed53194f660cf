"""RAC: retroactive advantage correction."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError, NonFiniteError
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import at_level, log_ratio, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.retroactive import age_weight, correction

OWN = declare(
    __name__,
    Metric(Section.LATE, "rac/returned_rows", "share", "rows of the batch that came back"),
    Metric(Section.LATE, "rac/{delay,age_weight,correction}/{mean,std,max}", "steps, weight, reward",
           "how late they came, how they were weighed, what they corrected"),
)  # fmt: skip


@REGISTRY.register("rac")
@dataclass(frozen=True, kw_only=True)
class RAC(Objective):
    """-sg(rho A_fast + s) logp, rho = min(1 + is_clip, prod_t current / behaviour) of the trajectory (arXiv
    2606.27580).

    A trajectory trains at once on its fast reward. When its slow one arrives, D optimizer steps later, it comes back
    as rows of its own (``batch.trained_at`` >= 0), with A_fast = 0, and corr = exp(-D / tau_age) rho alpha (r_slow -
    m_hat), cut to +-max_corr. Rows whose ``batch.reward_slow`` is absent (NaN) have corr = 0.

    ``slow_mode``: ``replace`` m_hat = ``batch.reward_fast`` (the slow reward replaces the fast one), ``add`` m_hat = 0.
    ``rho_on_slow``: ``once`` s = corr (default [inferred]; V-trace) or ``twice`` s = rho corr (the two published
    equations composed). Beyond ``lifetime`` optimizer steps a reward counts no more. Defaults otherwise as published;
    that fresh and returned rows share one mean over tokens is [inferred]. Since w_age < 1, the slow part never arrives
    in full (``stretto.objectives.retroactive.kernel_mass``).
    """

    tau_age: float = 50.0
    is_clip: float = 0.2
    alpha: float = 1.0
    max_corr: float = 5.0
    lifetime: int = 50
    slow_mode: Literal["replace", "add"] = "replace"
    rho_on_slow: Literal["once", "twice"] = "once"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.tau_age > 0, f"tau_age = {self.tau_age} must be above 0")
        self.require(0 <= self.is_clip < math.inf, f"is_clip = {self.is_clip} must be at least 0")
        self.require(0 <= self.alpha < math.inf, f"alpha = {self.alpha} must be at least 0 (0: no correction)")
        self.require(self.max_corr > 0, f"max_corr = {self.max_corr} must be above 0")
        self.require(self.lifetime >= 0, f"lifetime = {self.lifetime} must be at least 0")

    @property
    def needs(self) -> frozenset[str]:
        """Late rewards."""
        return super().needs | {"late"}

    def absent(self, batch: TokenBatch) -> Tensor:
        """Fresh rows without a fast reward: returned ones have used theirs."""
        return super().absent(batch) & ~_returned(batch)

    def advantages(self, batch: TokenBatch, logp: Tensor | None = None) -> Tensor:
        """A_fast [B,T]: that of fresh rows, among themselves; 0 for returned ones."""
        fresh = (~_returned(batch)).nonzero().squeeze(1)
        a = super().advantages(batch.select(fresh), None if logp is None else logp[fresh])
        return a.new_zeros(batch.mask.shape).index_copy(0, fresh, a)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The score, weighted by the fast advantage and the correction."""
        (behavior,) = batch.need("logp_behavior")
        d = log_ratio(logp.detach(), behavior, batch.mask)
        rho = ratio(at_level(d, batch, "trajectory").clamp(max=math.log1p(self.is_clip)))
        returned = _returned(batch)[:, None]
        corr, arrived, delay = self._corrected(batch, rho)
        slow = corr if self.rho_on_slow == "once" else rho * corr
        weight = torch.where(returned, 0.0, rho * advantages) + slow
        metrics = off_policy(batch, d, rho)
        rows = batch.mask.any(1)
        metrics.share("rac/returned_rows", returned[:, 0] & rows, rows.sum())
        metrics.moment("rac/delay", delay[arrived])
        metrics.moment("rac/age_weight", age_weight(delay[arrived], self.tau_age))
        metrics.moment("rac/correction", corr.abs()[arrived[:, None] & batch.mask])
        return -(weight * torch.where(batch.mask, logp, 0.0)), metrics

    def _corrected(self, batch: TokenBatch, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """corr [B,T], where a slow reward has arrived in time [B], its delay [B] in optimizer steps."""
        slow, trained_at = batch.need("reward_slow", "trained_at")
        slow = slow.detach()
        if bool(slow.isinf().any()):
            row = int(slow.isinf().nonzero()[0])
            raise NonFiniteError(f"reward_slow of row {row} is infinite: it is a number, or NaN where it isn't there")
        delay = torch.where(_returned(batch), batch.version - trained_at, 0).clamp(min=0).to(rho.dtype)
        arrived = slow.isfinite() & (delay <= self.lifetime)
        expected = torch.zeros_like(slow)
        if self.slow_mode == "replace":
            expected = batch.need("reward_fast")[0].detach()
            if not bool(expected[arrived].isfinite().all()):
                raise DataError("objective 'rac': a row has a slow reward but no fast one for it to replace")
        residual = torch.where(arrived, slow - expected, 0.0).to(rho.dtype)
        corr = correction(residual[:, None], delay[:, None], rho, self.tau_age, self.alpha, self.max_corr)
        return torch.where(batch.mask, corr, 0.0), arrived, delay


def _returned(batch: TokenBatch) -> Tensor:
    """[B] bool: the row trained before and comes back for its slow reward."""
    return batch.need("trained_at")[0] >= 0
