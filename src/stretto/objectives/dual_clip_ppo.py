"""PPO with dual clip."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.objectives.ppo import PPO
from stretto.objectives.registry import REGISTRY


@REGISTRY.register("dual-clip-ppo")
@dataclass(frozen=True, kw_only=True)
class DualClipPPO(PPO):
    """-s, s = min(r A, clip(r) A) where A >= 0, max(min(r A, clip(r) A), c A) where A < 0 (arXiv 1912.09729).

    PPO leaves r unbounded where A < 0; beyond ``dual_clip`` c > 1 the gradient is 0. c = 3 as in AsyncWebRL (arXiv
    2606.05597). Everything else is PPO's: a critic, GAE; with ``baseline="group"`` no critic.
    """

    dual_clip: float | None = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.dual_clip is not None, "dual_clip is what makes it dual; without it the method is 'ppo'")
