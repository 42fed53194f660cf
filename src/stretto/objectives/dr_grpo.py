"""Dr.GRPO."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.aggregate import Aggregation
from stretto.objectives.grpo import GRPO
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("dr-grpo")
@dataclass(frozen=True, kw_only=True)
class DrGRPO(GRPO):
    """sum_it -min(r A, clip(r) A) / (B max_length), A = R - mean_g, r = current / behaviour (arXiv 2503.20783).

    Neither the response's length nor the group's deviation divides, so that neither biases the update. ``max_length``
    (required): the longest response in tokens, a constant of the run.
    """

    std: bool = False
    aggregation: Aggregation = "const"
