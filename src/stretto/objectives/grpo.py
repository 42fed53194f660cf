"""GRPO and its usual variants."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.aggregate import Aggregation
from stretto.objectives.clipped import Clipped
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
    """

    aggregation: Aggregation = "seq-mean-token-mean"
