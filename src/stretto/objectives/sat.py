"""SAT: the staleness-adaptive trust region."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.clipped import Clipped
from stretto.objectives.gate import ppo_clip
from stretto.objectives.metrics import Metrics, off_policy
from stretto.objectives.ratio import at_level, log_ratio, ratio
from stretto.objectives.regions import Kernel, contraction, upper_quantile
from stretto.objectives.registry import REGISTRY

OWN = declare(
    __name__,
    Metric(Section.METHOD, "sat/{gated_tokens,radius_low,radius_high,log_ratio}", "share, ratio, nats",
           "`sat`: tokens whose interval was contracted, its bounds, the size of the log-ratio"),
    Metric(Section.METHOD, "sat/contracted_by/{mean,std,max}", "share",
           "`sat`: by how much the interval was contracted"),
)  # fmt: skip


@REGISTRY.register("sat")
@dataclass(frozen=True, kw_only=True)
class SAT(Clipped):
    """-min(r A, clip(r, 1 - clip_low c_minus, 1 + clip_high c_plus) A), r = current / behaviour (arXiv 2607.18722).

    |log r| is a token's observed staleness, q its ``alpha`` quantile over the policy tokens. In the stale tail,
    |log r| > q, the end of the interval on the ratio's own side contracts: c_plus = s if r > 1, c_minus = s if
    r < 1, all else 1. Updates that pull back towards r = 1 keep value and gradient. q = 0 is PPO.

    ``kernel`` s: ``H1`` q^n / (q^n + (|log r| - q)^n), continuous (default), or ``H2`` 1 / (1 + (|log r| / q)^n), 1/2
    at the gate; both [inferred], ``n`` 2 as published. ``level``: ``token``, or ``sequence``: r is the geometric mean
    over the row and A the mean, as in GSPO. ``quantile_scope``: the optimizer ``step`` (default [inferred]:
    micro-batches change nothing) or the ``micro-batch`` (the paper's). ``alpha`` 0.9 and clip 0.2 / 0.2 as published.
    """

    alpha: float = 0.9
    n: float = 2.0
    kernel: Kernel = "H1"
    level: Literal["token", "sequence"] = "token"
    quantile_scope: Literal["step", "micro-batch"] = "step"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.alpha <= 1, f"alpha = {self.alpha} must lie in [0, 1]")
        self.require(0 < self.n < math.inf, f"n = {self.n} must be above 0 and finite")
        self.require(self.reference == "behavior", "staleness is read off the behaviour: reference = 'behavior'")

    @property
    def needs(self) -> frozenset[str]:
        """The quantile is a statistic of the step."""
        return super().needs | ({"statistics"} if self.quantile_scope == "step" else frozenset())

    def statistics(self, batch: TokenBatch, logp: Tensor) -> dict[str, Tensor]:
        """``quantile``: q of the whole step."""
        if self.quantile_scope != "step":
            return {}
        return {"quantile": self._quantile(self._log_ratio(batch, logp), batch)}

    def _log_ratio(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        (behavior,) = batch.need("logp_behavior")
        d = log_ratio(logp, behavior, batch.mask)
        return at_level(d, batch, "geometric") if self.level == "sequence" else d

    def _quantile(self, d: Tensor, batch: TokenBatch) -> Tensor:
        return upper_quantile(d.detach().abs()[batch.mask], self.alpha)

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """The clipped surrogate with the contracted interval, negated."""
        d = self._log_ratio(batch, logp)
        q = (batch.statistics or {})["quantile"] if self.quantile_scope == "step" else self._quantile(d, batch)
        tokens = batch.mask.sum()
        if self.level == "sequence":
            mean = advantages.sum(1, keepdim=True) / batch.mask.sum(1, keepdim=True).clamp(min=1)
            advantages = mean.expand_as(advantages)
        size = d.detach().abs()
        c = contraction(size, q, self.kernel, self.n)
        low = torch.where(d.detach() < 0, c, 1.0) * self.clip_low
        high = torch.where(d.detach() > 0, c, 1.0) * self.clip_high
        surrogate, binds = ppo_clip(ratio(d), advantages, low, high, self.dual_clip)
        metrics = off_policy(batch, log_ratio(logp.detach(), batch.need("logp_behavior")[0], batch.mask), ratio(d))
        metrics.clipped(binds, batch.mask)
        metrics.share("sat/gated_tokens", (c < 1) & batch.mask, tokens)
        for name, x in {"sat/radius_low": low, "sat/radius_high": high, "sat/log_ratio": size}.items():
            metrics.share(name, torch.where(batch.mask, x, 0.0), tokens)
        metrics.moment("sat/contracted_by", 1 - c[batch.mask])  # its maximum is 1 - the smallest factor
        return -surrogate, metrics
