"""IcePop and KPop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.gate import inside, near_both_ways
from stretto.objectives.ratio import at_level, ratio
from stretto.objectives.registry import REGISTRY
from stretto.objectives.rejecting import Rejecting, rows_where
from stretto.objectives.weighted import Weighted


@REGISTRY.register("icepop")
@dataclass(frozen=True, kw_only=True)
class IcePop(Rejecting, Weighted):
    """-sg(x 1[kept]) A logp, x = trainer / engine = numerator / behaviour (Ring-1T, arXiv 2510.18855).

    ``region`` says which tokens are kept: ``ratio`` those with low <= x <= high, or ``bernoulli-kl`` those for which
    the KL of "this token or another" between trainer and engine stays below ``threshold`` nats in both directions
    (KPop): a ratio bounds rare tokens tightly and likely ones hardly, the KL the other way round. ``low``, ``high``
    and ``threshold`` are [inferred]. Dropped tokens stay in the denominator. With a PPO clip of current / proximal on
    top of the mask it is ``decoupled-ppo`` with ``correction="mask"``.

    At a ``level`` above the token a row is rejected as a whole; then it isn't in its group's baseline either
    (``baseline_over`` = ``kept``; decided by the policy at the start of the step, a forward pass), unless ``all``.
    """

    numerator: Literal["auto", "current", "proximal"] = "auto"
    region: Literal["ratio", "bernoulli-kl"] = "ratio"
    low: float = 0.5
    high: float = 5.0
    threshold: float = 0.05

    aliases: ClassVar[dict[str, tuple[str, ...]]] = Weighted.aliases | {"lo": ("low",), "hi": ("high",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 <= self.low < self.high, f"need 0 <= low < high, got {self.low} and {self.high}")
        self.require(self.threshold > 0, f"threshold = {self.threshold} must be above 0")
        token = self.region == "ratio" or self.level == "token"
        self.require(token, "region = 'bernoulli-kl' decides token by token: leave level = 'token'")

    @property
    def rejects(self) -> bool:
        return self.level != "token"

    @property
    def decides_by_row(self) -> bool:
        return self.level != "token"

    def kept_rows(self, batch: TokenBatch, logp: Tensor) -> Tensor:
        x = at_level(self.at_start(batch, logp), batch, self.level)
        return rows_where(inside(x, self.low, self.high), batch.mask)

    def gate(
        self, batch: TokenBatch, numerator: Tensor, d: Tensor, advantages: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = at_level(d, batch, self.level)
        if self.region == "ratio":
            kept = inside(x, self.low, self.high)
        else:
            (behavior,) = batch.need("logp_behavior")
            kept = near_both_ways(numerator, behavior, self.threshold)
        return torch.where(kept, ratio(x), 0.0), kept, torch.zeros_like(kept)
