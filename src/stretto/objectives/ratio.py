"""Ratios of policies, in log space: bounded before ``exp``, exactly 1 for equal inputs, 0 log-ratio where masked."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch

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


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - e^x) for x <= 0 in two branches (Maechler 2012): log1p(-e^x) below -log 2, log(-expm1(x)) above; -inf at
    0. Either branch sees only arguments that it can differentiate."""
    low = x < -math.log(2)
    return torch.where(
        low, torch.log1p(-torch.where(low, x, -1.0).exp()), torch.log(-torch.expm1(torch.where(low, -0.5, x)))
    )


Interpolation = Literal["log-linear", "linear"]
"""Between two policies: of log-probabilities, or of probabilities."""


def proxy_share(versions: Tensor, version: int) -> Tensor:
    """alpha [B,T] in [0, 1]: how far the policy before the last update lies from the one that sampled the token towards
    the current one, in versions: clip((v - 1 - v_b) / (v - v_b), 0, 1), 0 where v <= v_b (A-3PO, arXiv 2512.06547).

    ``versions`` [B,T] int v_b, ``version`` v. Staleness 0 and 1 have 0, 2 has 1/2, it tends to 1.
    """
    behind = (version - versions).clamp(min=1).double()
    return (behind - 1) / behind


def proxy_logp(logp: Tensor, behavior: Tensor, alpha: Tensor | float, kind: Interpolation = "log-linear") -> Tensor:
    """Log-probabilities [B,T], detached, of a policy between behaviour (``alpha`` 0) and current (1), without a forward
    pass: lb + alpha (logp - lb), or log((1 - alpha) e^lb + alpha e^logp) (A-3PO, arXiv 2512.06547). Equal inputs give
    the same numbers back, bit for bit."""
    logp, behavior = logp.detach(), behavior.detach()
    d = logp - behavior
    if kind == "log-linear":
        return behavior + torch.as_tensor(alpha, dtype=d.dtype) * d
    alpha = torch.as_tensor(alpha, dtype=d.dtype).expand_as(d)
    smaller = torch.where(d > 0, 1 - alpha, alpha)  # the share of the less likely: e^-|d| can't overflow
    return torch.maximum(logp, behavior) + torch.log1p(smaller * torch.expm1(-d.abs()))
