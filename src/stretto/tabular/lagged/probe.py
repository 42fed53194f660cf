"""An objective that is watched while it learns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.loss import Loss
from stretto.objectives.metrics import Metrics


@dataclass
class Probe:
    """An objective that is watched: called like ``objective``, whose loss it returns. ``outward``: per call, the sum of
    |slope| over tokens whose update points away from r = 1, as a share of sum |r A| (the slope without any clip) over
    all tokens; ``metrics``: those of all losses together."""

    objective: Any
    outward: list[float] = field(default_factory=list)
    metrics: Metrics = field(default_factory=Metrics)

    def __getattr__(self, name: str) -> Any:
        """What else is asked of an objective (``needs``, ...)."""
        return getattr(self.objective, name)

    def __call__(self, batch: TokenBatch, logp: Tensor, values: Tensor | None = None) -> Loss:
        """The loss of ``objective``."""
        loss: Loss = self.objective(batch, logp, values=values)
        (slope,) = torch.autograd.grad(loss.total, logp, retain_graph=True)
        now, advantages = logp.detach(), self.objective.advantages(batch)
        d = now - batch.need("logp_behavior")[0]
        mass = (d.exp() * advantages).abs().sum()
        outward = slope[batch.mask & (advantages * d > 0)].abs().sum() * batch.step_totals().tokens
        self.outward.append(float(outward / mass) if mass > 0 else 0.0)
        self.metrics = self.metrics + loss.metrics
        return loss
