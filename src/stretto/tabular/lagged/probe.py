"""An objective that is watched while it learns."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.base import Objective
from stretto.objectives.loss import Loss
from stretto.objectives.metrics import Metrics


@dataclass
class Probe:
    """An objective that is watched: called like ``objective``, whose loss it returns. ``outward``: per call, the sum of
    |slope| over tokens whose update points away from r = 1, as a share of sum |r A| (the slope without any clip) over
    all tokens; ``metrics``: those of all losses together."""

    objective: Objective
    outward: list[float] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    @property
    def needs(self) -> frozenset[str]:
        """Those of ``objective``."""
        return self.objective.needs

    def __call__(
        self, batch: TokenBatch, logp: Tensor, values: Tensor | None = None, advantages: Tensor | None = None
    ) -> Loss:
        """The loss of ``objective``."""
        loss = self.objective(batch, logp, values, advantages)
        (slope,) = torch.autograd.grad(loss.total, logp, retain_graph=True)
        now = logp.detach()
        a = self.objective.advantages(batch) if advantages is None else advantages.reshape(len(advantages), -1)
        d = now - batch.need("logp_behavior")[0]
        mass = (d.exp() * a).abs().sum()
        outward = slope[batch.mask & (a * d > 0)].abs().sum() * batch.step_totals().tokens
        self.outward.append(float(outward / mass) if mass > 0 else 0.0)
        self.metrics = self.metrics + loss.metrics
        return loss
