"""Gates: which tokens count, and with what weight at most. All decisions are detached."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def ppo_clip(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate [B,T] (to be maximised) and where the clip binds [B,T] bool.

    min(r A, clip(r, 1-low, 1+high) A) (PPO, arXiv 1707.06347); with ``dual`` c > 1 and A < 0 at least c A
    (dual clip, arXiv 1912.09729). The gradient is r A, and 0 where the clip binds.
    """
    r = ratio.detach()
    positive = advantages > 0
    binds = torch.where(positive, r > 1 + high, (r < 1 - low) & (advantages < 0))
    bound = r.clamp(1 - low, 1 + high)
    if dual is not None:
        beyond = (advantages < 0) & (r > dual)
        bound = torch.where(beyond, dual, bound)
        binds = binds | beyond
    return torch.where(binds, bound, ratio) * advantages, binds


def inside(d: Tensor, low: float, high: float) -> Tensor:
    """Bool: the ratio with logarithm ``d`` lies in [low, high]; decided in log space, so nothing overflows."""
    d = d.detach()
    lowest = math.log(low) if low > 0 else -math.inf
    return (d >= lowest) & (d <= math.log(high))


def veto(d: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """[B,1] bool: True for rows in which every policy token's ratio is at least ``threshold``."""
    broken = (d.detach() < math.log(threshold)) & mask
    return ~broken.any(1, keepdim=True)
