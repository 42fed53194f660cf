"""PPO."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.base import Baseline
from stretto.objectives.clipped import Clipped
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("ppo")
@dataclass(frozen=True, kw_only=True)
class PPO(Clipped):
    """-min(r A, clip(r) A) + critic loss, A from GAE over the policy tokens (arXiv 1707.06347, 1506.02438).

    Needs a critic. The critic's targets are V + GAE(``critic_gae_lambda``). ``std=true`` standardises the advantages
    over the step. The reference of the ratio is the behaviour policy.
    """

    baseline: Baseline = "gae"
    std: bool = False
    gae_lambda: float = 0.95
