"""Decoupled PPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.clipped import Clipped
from stretto.objectives.gate import inside, ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import Reference, log_ratio, ratio, reference_logp
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("decoupled-ppo")
@dataclass(frozen=True, kw_only=True)
class DecoupledPPO(Clipped):
    """-sg(g(w)) min(rho A, clip(rho) A), w = reference / behaviour, rho = current / reference (AReaL, arXiv 2505.24298;
    arXiv 2110.00641).

    ``reference``: ``proximal`` (default), recomputed at the start of the step: w contains the staleness, too; or
    ``old``, the trainer's policy at each token's own version: w is the mismatch of engine and trainer alone and rho
    the staleness (Missing Old Logits, arXiv 2605.12070).

    ``correction`` g: ``drop`` masks tokens with w > ``cap`` (AReaL; default), ``mask`` those outside [``floor``,
    ``cap``], ``truncate`` takes min(w, ``cap``), ``none`` takes w. ``cap``: 5 for ``drop`` (AReaL), else 2
    (as TIS and MIS). Masked tokens stay in the denominator. ``baseline`` is the group by default; ``gae`` makes it PPO
    with a critic.
    """

    reference: Reference = "proximal"
    correction: Literal["drop", "mask", "truncate", "none"] = "drop"
    cap: float | None = None
    floor: float = 0.5

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Clipped.aliases | {
        "C": ("cap",),
        "lo": ("floor",),
        "hi": ("cap",),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.reference != "behavior", "reference = 'behavior' is PPO: choose 'proximal' or 'old'")
        self.require(self.highest > 0, f"cap = {self.cap} must be above 0")
        self.require(self.floor >= 0, f"floor = {self.floor} must be at least 0")
        if self.correction == "mask":
            self.require(0 <= self.floor < self.highest, f"need 0 <= floor < cap, got {self.floor}, {self.highest}")

    @property
    def idle(self) -> dict[str, str]:
        """The bounds that ``correction`` doesn't look at."""
        why = f"objective.correction = {self.correction!r} doesn't use it"
        found = super().idle if self.correction == "mask" else super().idle | {"floor": why}
        return found | {"cap": why} if self.correction == "none" else found

    @property
    def highest(self) -> float:
        """``cap``, or its default for the correction."""
        return self.cap if self.cap is not None else 5.0 if self.correction == "drop" else 2.0

    def weight(self, d: Tensor) -> tuple[Tensor, Tensor]:
        """g(w) and where it keeps the token, from log w."""
        x = ratio(d)
        if self.correction in ("none", "truncate"):
            kept = torch.ones_like(d, dtype=torch.bool)
            return (x if self.correction == "none" else x.clamp(max=self.highest)), kept
        kept = inside(d, self.floor if self.correction == "mask" else 0.0, self.highest)
        return torch.where(kept, x, 0.0), kept

    def anchor(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """Log-probabilities [B,T] of the policy between behaviour and current."""
        return reference_logp(batch, self.reference)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate against the reference, weighted by g(w)."""
        (behavior,) = batch.need("logp_behavior")
        reference = self.anchor(batch, logp.detach())
        weight, kept = self.weight(log_ratio(reference.detach(), behavior, batch.mask))
        rho = ratio(log_ratio(logp, reference, batch.mask))
        surrogate, binds = ppo_clip(rho, advantages, self.clip_low, self.clip_high, self.dual_clip)
        metrics = off_policy(batch, log_ratio(logp.detach(), behavior, batch.mask), weight * rho.detach())
        metrics.clipped(binds & kept, batch.mask)
        metrics.kept(kept, batch.mask)
        return -(surrogate * weight), metrics
