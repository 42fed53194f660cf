"""RLOO."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.base import Baseline
from stretto.objectives.registry import REGISTRY
from stretto.objectives.reinforce import Reinforce


@REGISTRY.register("rloo")
@dataclass(frozen=True, kw_only=True)
class RLOO(Reinforce):
    """-A logp, A = R_i - mean of the other rewards of the group (arXiv 2402.14740). Doesn't correct for staleness.

    Unbiased for samples of the current policy, unlike the group's mean, which contains R_i (a factor (G - 1) / G).
    Aggregation over tokens [inferred]: ``token-mean`` as the others here; ``seq-mean-token-sum`` treats a response as
    one action.
    """

    baseline: Baseline = "leave-one-out"
