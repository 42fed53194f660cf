"""``Loss``, and the critic's part of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.inputs import floating
from stretto.objectives.metrics import Metrics


@dataclass(frozen=True)
class Loss:
    """``total`` = ``policy`` + ``critic``, scalars with gradient; ``critic`` is 0 without values. ``metrics`` add
    up over micro-batches and read as a mapping of names to numbers."""

    total: Tensor
    policy: Tensor
    critic: Tensor
    metrics: Metrics


def critic_loss(batch: TokenBatch, values: Tensor, targets: Tensor, value_clip: float | None = None) -> Tensor:
    """0.5 mean over the step's policy tokens of (V - G)^2; with ``value_clip`` e the larger of that and the same
    with V cut to batch.values +- e (PPO's value clip). ``values`` and ``targets`` G, detached, are [B,T]; ``DataError``
    if not."""
    values, targets = (
        floating(name, x, torch.float32, batch.mask.shape) for name, x in (("values", values), ("targets", targets))
    )
    error = torch.where(batch.mask, values - targets.detach(), 0.0).square()
    if value_clip is not None:
        (recorded,) = batch.need("values")
        recorded = torch.where(batch.mask, recorded.detach(), 0.0)
        kept = recorded + (torch.where(batch.mask, values, 0.0) - recorded).clamp(-value_clip, value_clip)
        clipped = torch.where(batch.mask, kept - targets.detach(), 0.0).square()
        error = torch.maximum(error, clipped)
    return 0.5 * error.sum() / max(batch.step_totals().tokens, 1)
