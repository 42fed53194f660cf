"""Group-mass capped GRPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.aggregate import Aggregation
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import at_level, log_ratio, ratio
from stretto.objectives.regions import group_mass_scale, upper_cap
from stretto.objectives.registry import REGISTRY
from stretto.objectives.rejecting import Rejecting, rows_where

Variant = Literal["gmc", "tic_truncate", "tic_zero"]


@REGISTRY.register("gmc-grpo")
@dataclass(frozen=True, kw_only=True)
class GMCGRPO(Rejecting):
    """-(1/B) sum_i sg(w_i) A_i (1/n_i) sum_t logp (arXiv 2610.01896), r_i = prod_t current / behaviour over all rows of
    the trajectory, w_i = r_i min(1, G (1 + eps) / sum_j r_j) over the G trajectories of the group.

    The whole group is rescaled: relative weights stay, and the bias of capping vanishes as groups grow. The cap
    G (1 + eps) is [inferred]. ``variant``: ``gmc`` (default), or TIC-GRPO's (arXiv 2508.02833) ``tic_truncate``,
    w_i = min(r_i, 1 + eps), or ``tic_zero``, w_i = r_i and 0 above 1 + eps (the gradient of min(r, 1 + eps) A); both
    readings [inferred].

    ``eps`` 0.2 [inferred]. ``length_norm=false`` leaves 1/n_i out (aggregation ``seq-mean-token-sum``). A group must be
    whole in one optimizer step. ``tic_zero`` drops trajectories: ``baseline_over`` = ``all`` (as published) or
    ``kept`` (a dropped one isn't in its group's baseline; the ratio is that at the start of the step). Products of
    ratios degenerate with length: watch ``gate/capped_sequences``.
    """

    eps: float = 0.2
    variant: Variant = "gmc"
    length_norm: bool = True
    aggregation: Aggregation = "seq-mean-token-mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.eps >= 0, f"eps = {self.eps} must be at least 0")
        if not self.length_norm:
            default = self.aggregation in ("seq-mean-token-mean", "seq-mean-token-sum")
            self.require(default, f"length_norm = false and aggregation = {self.aggregation!r} exclude each other")
            object.__setattr__(self, "aggregation", "seq-mean-token-sum")

    @property
    def needs(self) -> frozenset[str]:
        """The sum over a group is a statistic of the step."""
        return super().needs | ({"statistics"} if self.variant == "gmc" else frozenset())

    @property
    def rejects(self) -> bool:
        return self.variant == "tic_zero"

    def kept_rows(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        d = log_ratio(logp, batch.need("logp_behavior")[0], batch.mask)
        return rows_where(~upper_cap(at_level(d, batch, "trajectory"), self.eps, "zero")[1], batch.mask)

    def statistics(self, batch: TokenBatch, logp: Tensor) -> dict[str, Tensor]:
        """``log_scale`` [B]: what the group takes off the row's log-weight."""
        if self.variant != "gmc":
            return {}
        behavior, group = batch.need("logp_behavior", "group")
        index, group = batch.trajectory_index(), torch.unique(group, return_inverse=True)[1]
        trajectories = batch.trajectories
        total = log_ratio(logp, behavior, batch.mask).sum(1)
        total = total.new_zeros(trajectories).index_add(0, index, total)
        group = group.new_zeros(trajectories).index_copy(0, index, group)
        return {"log_scale": group_mass_scale(total, group, self.eps)[index]}

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The score, weighted by the capped ratio of the trajectory."""
        (behavior,) = batch.need("logp_behavior")
        d = log_ratio(logp.detach(), behavior, batch.mask)
        whole = at_level(d, batch, "trajectory")
        if self.variant == "gmc":
            scale = (batch.statistics or {})["log_scale"][:, None]
            log_weight, capped = whole + scale, (scale < 0).expand_as(whole)
        else:
            log_weight, capped = upper_cap(whole, self.eps, "zero" if self.variant == "tic_zero" else "truncate")
        weight = torch.where(log_weight == -torch.inf, 0.0, ratio(log_weight))
        metrics = off_policy(batch, d, weight)
        metrics.capped_sequences(capped, weight, batch.mask)
        return -(weight * advantages * torch.where(batch.mask, logp, 0.0)), metrics
