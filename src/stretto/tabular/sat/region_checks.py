"""Two clipped surrogates side by side, token by token: where a staleness-adaptive region differs from the nominal one.

Random batches with heavy-tailed log-ratios.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.base import Objective
from stretto.objectives.regions import contraction
from stretto.objectives.sat import SAT


def random_tokens(seed: int, tokens: int = 500) -> tuple[TokenBatch, Tensor, Tensor]:
    """(batch of 10 rows, logp, advantages): log-ratios are Student's t with 3 degrees of freedom, their size log-
    uniform in [0.01, 0.5]; advantages standard normal. Float64, no gradient."""
    g = torch.Generator().manual_seed(seed)
    shape = (10, tokens // 10)
    behavior = -3 * torch.rand(shape, generator=g, dtype=torch.float64)
    normal = torch.randn(4, *shape, generator=g, dtype=torch.float64)
    size = 0.01 * 50 ** float(torch.rand((), generator=g, dtype=torch.float64))
    d = size * normal[0] / normal[1:].square().mean(0).sqrt()
    advantages = torch.randn(shape, generator=g, dtype=torch.float64)
    batch = TokenBatch(mask=torch.ones(shape, dtype=torch.bool), logp_behavior=behavior, group=torch.arange(10))
    return batch, behavior + d, advantages


def contractions(sat: SAT, batch: TokenBatch, logp: Tensor) -> tuple[Tensor, Tensor]:
    """(c_minus, c_plus) [B,T]: the factors <= 1 by which SAT shrinks the lower and the upper radius of each token's
    trust region."""
    q = sat.statistics(batch, logp)["quantile"]
    d = logp - batch.need("logp_behavior")[0]
    c = contraction(d.abs(), q, sat.kernel, sat.n)
    return torch.where(d < 0, c, 1.0), torch.where(d > 0, c, 1.0)


def violations(
    sat: SAT, nominal: Objective, batch: TokenBatch, logp: Tensor, advantages: Tensor
) -> tuple[dict[str, int], int]:
    """(violations, tokens whose update is newly intercepted). Violations: tokens that break a property of the
    staleness-adaptive region (arXiv 2607.18722, Proposition 4.1), beside the ``nominal`` clipped objective with the
    same radii; all counts are 0 if it is right. No masked tokens."""
    ours, our_slope = _tokens(sat, batch, logp, advantages)
    theirs, their_slope = _tokens(nominal, batch, logp, advantages)
    low, high = contractions(sat, batch, logp)
    d = logp - batch.need("logp_behavior")[0]
    r, n = d.exp(), d.numel()
    band = (advantages > 0) & (r > 1 + sat.clip_high * high) & (r <= 1 + sat.clip_high)
    band |= (advantages < 0) & (r < 1 - sat.clip_low * low) & (r >= 1 - sat.clip_low)
    inward = advantages * d < 0
    scaled = batch.replace(logp_behavior=torch.zeros_like(d))
    again = contractions(sat, scaled, 2 * d)  # powers of two scale without rounding
    first = contractions(sat, scaled, d)
    gated = int(((low < 1) | (high < 1)).sum())
    counts = {
        "factor outside (0, 1]": int(((low <= 0) | (low > 1) | (high <= 0) | (high > 1)).sum()),
        "surrogate above the nominal one": int((ours > theirs).sum()),
        "inward update changed": int((inward & ((ours != theirs) | (our_slope != their_slope))).sum()),
        "gated beyond ceil((1 - alpha) N)": max(0, gated - math.ceil((1 - sat.alpha) * n - 1e-9)),
        "slope in an intercepted band": int((band & (our_slope != 0)).sum()),
        "slope changed elsewhere": int((~band & (our_slope != their_slope)).sum()),
        "factor changed with the scale of d": int(sum((a != b).sum() for a, b in zip(first, again, strict=True))),
    }
    return counts, int(band.sum())


def unlike_nominal(sat: SAT, nominal: Objective, batch: TokenBatch, advantages: Tensor, size: float) -> int:
    """Tokens on which value or slope differ bit for bit although all |log r| are ``size`` (0: equal policies)."""
    (behavior,) = batch.need("logp_behavior")
    sign = torch.where(behavior > behavior.median(), 1.0, -1.0).to(behavior)
    zero = batch.replace(logp_behavior=torch.zeros_like(behavior))  # so that log r is +-size without rounding
    found = [_tokens(o, zero, size * sign, advantages) for o in (sat, nominal)]
    return int(sum((a != b).sum() for a, b in zip(*found, strict=True)))


def _tokens(objective: Objective, batch: TokenBatch, logp: Tensor, advantages: Tensor) -> tuple[Tensor, Tensor]:
    """Surrogate per token, and the derivative of the loss by the token's log-probability."""
    leaf = logp.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(batch, leaf, advantages=advantages).total, leaf)
    prepared, logp, _, a = objective.prepared(batch, logp, None, advantages)
    return -objective.token_loss(prepared, logp, a)[0].detach(), slope
