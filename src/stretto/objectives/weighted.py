"""Importance weights on the score, shared by truncated and masked importance sampling (not a method by itself)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.base import Objective
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import Level, at_level, log_ratio


@dataclass(frozen=True, kw_only=True)
class Weighted(Objective):
    """-sg(w) A logp, with w made from numerator / behaviour at ``level``.

    ``numerator``: ``current`` (corrects fully, inner steps included), ``proximal`` (weights fixed at the start of the
    step, as TRL and verl do; the same with one optimizer step a batch), or ``auto``: proximal where the batch has
    proximal log-probabilities, else current.
    """

    numerator: Literal["auto", "current", "proximal"] = "current"
    level: Level = "token"

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | ({"proximal"} if self.numerator == "proximal" else frozenset())

    def weight(self, token: Tensor, level: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(weight, kept, truncated), each [B,T], from the detached log-ratios of the token and at the level."""
        raise NotImplementedError

    def gate(
        self, batch: TokenBatch, numerator: Tensor, d: Tensor, advantages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``weight``, for methods that must know more: the numerator's log-probabilities [B,T], its log-ratios ``d``
        and the advantages, all detached."""
        return self.weight(d, at_level(d, batch, self.level), batch.mask)

    def fixed(self, batch: TokenBatch) -> Tensor | None:
        """The numerator's log-probabilities [B,T] where they are fixed at the start of the step; None: the current
        ones."""
        proximal = batch.need("logp_proximal")[0] if self.numerator == "proximal" else batch.logp_proximal
        return proximal if self.numerator != "current" else None

    def at_start(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        """Log-ratios [B,T] of the numerator as it is at the start of the step, when the policy's are ``logp``."""
        fixed = batch.logp_proximal if self.numerator != "current" else None
        return log_ratio((logp if fixed is None else fixed).detach(), batch.need("logp_behavior")[0], batch.mask)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        (behavior,) = batch.need("logp_behavior")
        fixed = self.fixed(batch)
        numerator = (logp if fixed is None else fixed).detach()
        d = log_ratio(numerator, behavior, batch.mask)
        weight, kept, truncated = self.gate(batch, numerator, d, advantages)
        now = d if fixed is None else log_ratio(logp.detach(), behavior, batch.mask)
        metrics = off_policy(batch, now, weight)
        metrics.truncated(truncated, batch.mask)
        metrics.kept(kept, batch.mask)
        metrics.kept_sequences(kept, batch.mask)
        return -(weight * advantages * torch.where(batch.mask, logp, 0.0)), metrics
