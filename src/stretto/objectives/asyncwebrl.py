"""AsyncWebRL."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.advantage import steps_of
from stretto.objectives.decoupled_ppo import DecoupledPPO
from stretto.objectives.metrics import Metrics
from stretto.objectives.registry import REGISTRY

OWN = declare(
    __name__,
    Metric(Section.METHOD, "trajectory/steps/{mean,std,max}", "turns",
           "`asyncwebrl`: turns of a trajectory, as its normaliser counts them"),
)  # fmt: skip


@REGISTRY.register("asyncwebrl")
@dataclass(frozen=True, kw_only=True)
class AsyncWebRL(DecoupledPPO):
    """sg(w) 1[w <= cap] max(-A rho, -A clip(rho)), for A < 0 at most -c A, with A = A_tau / k (arXiv 2606.05597).

    Rows are steps of trajectories; A_tau is the group's advantage of trajectory tau. ``normaliser``: ``const`` divides
    it by ``k`` (default, 10: the horizon of the easy tasks), so every step counts alike; ``length`` by |tau|, the
    trajectory's number of rows (GRPO), which weakens each step of a long failure. Ready advantages stand for A_tau.
    w = proximal / behaviour, dropped above 5; rho = current / proximal; dual clip c = 3: as published.

    ``aggregation``: ``token-mean`` (default, the official code) or ``trajectory-sum`` (the displayed objective). A
    trajectory's rows must all be in one optimizer step. k also scales the step size, by mean |tau| / k.
    """

    normaliser: Literal["const", "length"] = "const"
    k: float = 10.0
    dual_clip: float | None = 3.0

    aliases: ClassVar[dict[str, tuple[str, ...]]] = DecoupledPPO.aliases | {"normalizer": ("normaliser",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(0 < self.k < math.inf, f"k = {self.k} must be above 0 and finite")

    def token_loss(self, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Metrics]:
        """Decoupled PPO with the advantage of a step."""
        batch.need("trajectory")
        steps = steps_of(batch)
        per_step = advantages / (self.k if self.normaliser == "const" else steps[:, None])
        loss, metrics = super().token_loss(batch, logp, per_step)
        metrics.moment("trajectory/steps", steps)
        return loss, metrics
