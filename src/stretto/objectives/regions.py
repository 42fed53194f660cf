"""Gates that look beyond one token's ratio: at its group, at the entropy of its position, at its staleness. All
decisions are detached and made in log space."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Kernel = Literal["H1", "H2"]
"""How the staleness-adaptive region contracts beyond the quantile: continuously from 1 (H1), or from 1/2 (H2)."""


def group_mass_scale(log_ratio: Tensor, group: Tensor, eps: float) -> Tensor:
    """log min(1, G (1 + eps) / sum_j r_j) [U], the sum over the G members of each group (arXiv 2610.01896).

    ``log_ratio`` [U]: log r_j, any size; ``group`` [U]: number of its group, 0 upwards. All r = 1 gives exactly 0.
    """
    x = log_ratio.detach()
    groups = int(group.max()) + 1 if group.numel() else 0
    peak = x.new_full((groups,), -torch.inf).scatter_reduce(0, group, x, "amax")
    mass = x.new_zeros(groups).index_add(0, group, (x - peak[group]).exp())
    size = x.new_zeros(groups).index_add(0, group, torch.ones_like(x))
    scale = (size * (1 + eps)).log() - (peak + mass.log())
    return scale.clamp(max=0.0)[group]


def upper_cap(log_ratio: Tensor, eps: float, beyond: Literal["truncate", "zero"]) -> tuple[Tensor, Tensor]:
    """(log weight, where it is capped), like ``log_ratio``: a ratio above 1 + eps becomes 1 + eps, or 0 (log weight
    -inf) (arXiv 2508.02833)."""
    x = log_ratio.detach()
    highest = math.log1p(eps)
    capped = x > highest
    return torch.where(capped, highest if beyond == "truncate" else -math.inf, x), capped


def entropy_region(d: Tensor, entropy: Tensor, tau: float, eps: float) -> Tensor:
    """Bool [B,T]: d^2 / (H + eps) <= tau (arXiv 2607.22186). ``entropy`` [B,T] H in nats, of the behaviour policy:
    never negative (rounding below 0 counts as 0)."""
    return d.detach().square() / (entropy.detach().clamp(min=0.0) + eps) <= tau


def upper_quantile(x: Tensor, alpha: float) -> Tensor:
    """The ``alpha`` quantile of ``x`` [n] by linear interpolation, a scalar; 0 of nothing.

    Exactly a value of ``x`` where the interpolation falls on one or lies between equal ones, so that ``x > quantile``
    is decided without rounding. No limit on n.
    """
    n = x.numel()
    if n == 0:
        return x.new_zeros(())
    place = alpha * (n - 1)
    below = round(place)
    if abs(place - below) > 1e-9 * n:  # 0.9 * 30 is 27, whatever floating point makes of it
        below = math.floor(place)
    low = x.kthvalue(below + 1).values
    if place <= below or below + 1 == n:
        return low
    return low + (place - below) * (x.kthvalue(below + 2).values - low)


def contraction(size: Tensor, quantile: Tensor, kernel: Kernel, n: float) -> Tensor:
    """Factor in (0, 1] on the clip's radius, like ``size`` |d|: 1 up to ``quantile`` q, and everywhere if q = 0; beyond
    it q^n / (q^n + (|d| - q)^n) (H1) or 1 / (1 + (|d| / q)^n) (H2) (arXiv 2607.18722; the kernels are [inferred])."""
    size = size.detach()
    beyond = (size > quantile) & (quantile > 0)
    excess = (size - quantile if kernel == "H1" else size) / torch.where(quantile > 0, quantile, 1.0)
    factor = 1 / (1 + torch.where(beyond, excess, 0.0).pow(n))
    return torch.where(beyond, factor.clamp(min=torch.finfo(size.dtype).tiny), 1.0)
