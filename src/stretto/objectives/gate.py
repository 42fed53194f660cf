"""Gates: which tokens count, and with what weight at most. All decisions are detached."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stretto.objectives.ratio import log1mexp


def ppo_clip(
    ratio: Tensor, advantages: Tensor, low: float | Tensor, high: float | Tensor, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate [B,T] (to be maximised) and where the clip binds [B,T] bool.

    min(r A, clip(r, 1-low, 1+high) A) (PPO, arXiv 1707.06347); with ``dual`` c > 1 and A < 0 at least c A
    (dual clip, arXiv 1912.09729). The gradient is r A, and 0 where the clip binds. ``low``, ``high``: one
    for all or one a token [B,T], detached.
    """
    r = ratio.detach()
    positive = advantages > 0
    binds = torch.where(positive, r > 1 + high, (r < 1 - low) & (advantages < 0))
    bound = torch.where(positive, r.clamp(max=1 + high), r.clamp(min=1 - low))
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


def bernoulli_kl(logp: Tensor, logq: Tensor) -> Tensor:
    """KL(p || q) >= 0 in nats of "the sampled token or another": p log(p/q) + (1 - p) log((1 - p)/(1 - q)), from
    log-probabilities <= 0; inf where q excludes what p allows. Detached."""
    logp, logq = logp.detach(), logq.detach()
    p = logp.exp()
    this = torch.where(p > 0, p * (logp - logq), 0.0)
    rest = -torch.expm1(logp)
    other = torch.where(rest > 0, rest * (log1mexp(logp) - log1mexp(logq)), 0.0)
    return (this + other).clamp(min=0.0)


def near_both_ways(logp: Tensor, logq: Tensor, threshold: float) -> Tensor:
    """Bool: the Bernoulli KL stays below ``threshold`` (nats) in both directions (KPop)."""
    return (bernoulli_kl(logp, logq) < threshold) & (bernoulli_kl(logq, logp) < threshold)


def moving_away(d: Tensor, advantages: Tensor) -> Tensor:
    """Bool: the update would raise a token that is likelier than when sampled (A > 0, ``d`` > 0), or lower one that is
    less likely (A < 0, ``d`` < 0)."""
    return d.detach() * advantages > 0


def sequence_kept(d: Tensor, advantages: Tensor, mask: Tensor, delta: float) -> Tensor:
    """[B,T] bool: False where A < 0 in a row whose tokens became less likely by more than ``delta`` nats on average,
    mean_t(reference - current) > delta (off-policy sequence masking, OPSM). ``d`` = log current - log reference."""
    fallen = -d.detach().sum(1) / mask.sum(1).clamp(min=1)
    return ~((fallen > delta)[:, None] & (advantages < 0))


def second_moment_limit(d: Tensor, mask: Tensor, threshold: float) -> Tensor:
    """Scalar: the smallest d^2 that must go, so that the mean of d^2 over the remaining policy tokens is below
    ``threshold``; inf if none must (M2PO, arXiv 2510.01161). Tied values go together. Sorts the tokens of the batch."""
    x = d.detach()[mask].double().square().sort().values
    mean = x.cumsum(0) / torch.arange(1, x.numel() + 1, device=x.device)
    kept = int((mean < threshold).sum())  # the mean of the k smallest never falls with k
    return x[kept] if kept < x.numel() else x.new_tensor(math.inf)
