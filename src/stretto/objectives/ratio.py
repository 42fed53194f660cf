"""Ratios of policies, in log space: bounded before ``exp``, exactly 1 for equal inputs, 0 log-ratio where masked."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stretto.batch import TokenBatch

LOG_BOUND = 40.0
"""|log ratio| is cut here before ``exp``: e^40 = 2e17 and its inverse are ordinary float32 numbers."""

Level = Literal["token", "sequence", "geometric", "trajectory"]
"""Of what a ratio is: one token; the product over the row; its n-th root (length-invariant); the product over all rows
of the row's trajectory."""

Reference = Literal["behavior", "proximal", "old"]
"""The policy under the ratio: the one that sampled; the one at the start of the step; the trainer's at the version that
sampled."""


def reference_logp(batch: TokenBatch, reference: Reference) -> Tensor:
    """Log-probabilities [B,T] of the reference policy; ``DataError`` if the batch lacks them."""
    return batch.need(f"logp_{reference}")[0]


def log_ratio(logp: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """``logp - reference`` [B,T]; 0 where masked, whatever stands there. Gradient through ``logp``."""
    return torch.where(mask, logp - reference.detach(), 0.0)


def ratio(d: Tensor) -> Tensor:
    """``exp`` of a log-ratio, cut at ``LOG_BOUND`` (no gradient beyond it)."""
    return d.clamp(-LOG_BOUND, LOG_BOUND).exp()


def at_level(d: Tensor, batch: TokenBatch, level: Level) -> Tensor:
    """Log-ratio [B,T] at ``level``: itself, or the row's sum or mean over policy tokens, or the sum over the rows of
    the trajectory, repeated over the row.

    ``d`` is 0 where masked. A row without policy tokens has 0.
    """
    if level == "token":
        return d
    total = d.sum(1)
    if level == "geometric":
        total = total / batch.mask.sum(1).clamp(min=1)
    elif level == "trajectory" and batch.trajectory is not None:
        index = batch.trajectory_index()
        total = total.new_zeros(batch.trajectories).index_add(0, index, total)[index]
    return total[:, None].expand_as(d)
