"""Ratios of policies, in log space: bounded before ``exp``, exactly 1 for equal inputs, 0 log-ratio where masked."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

LOG_BOUND = 40.0
"""|log ratio| is cut here before ``exp``: e^40 = 2e17 and its inverse are ordinary float32 numbers."""

Level = Literal["token", "sequence", "geometric"]
"""Of what a ratio is: one token; the product over the row; the product's n-th root (length-invariant)."""


def log_ratio(logp: Tensor, reference: Tensor, mask: Tensor) -> Tensor:
    """``logp - reference`` [B,T]; 0 where masked, whatever stands there. Gradient through ``logp``."""
    return torch.where(mask, logp - reference.detach(), 0.0)


def ratio(d: Tensor) -> Tensor:
    """``exp`` of a log-ratio, cut at ``LOG_BOUND`` (no gradient beyond it)."""
    return d.clamp(-LOG_BOUND, LOG_BOUND).exp()


def at_level(d: Tensor, mask: Tensor, level: Level) -> Tensor:
    """Log-ratio [B,T] at ``level``: itself, or the row's sum or mean over policy tokens, repeated over the row.

    ``d`` is 0 where masked. A row without policy tokens has 0.
    """
    if level == "token":
        return d
    total = d.sum(1, keepdim=True)
    if level == "geometric":
        total = total / mask.sum(1, keepdim=True).clamp(min=1)
    return total.expand_as(d)
