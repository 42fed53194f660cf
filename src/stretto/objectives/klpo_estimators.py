"""Estimates of KL(sampler || current) at a prefix, from what was recorded beside the sampled token.

Everything is flat: [n] of n policy tokens, [n,M] or [n,K] of their alternatives. ``p`` are log-probabilities of the
current policy (with gradient where something comes of it), ``q`` those of the sampler. Nothing is renormalised,
merged or clamped; 0 log 0 is 0 for the sampler (On KL-Regularized Policy Optimization, arXiv 2610.08963).
"""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.kernel.errors import DataError
from stretto.objectives.ratio import log1mexp

_MASS_TOLERANCE = 1e-3


def weighted_sum(weight: Tensor, values: Tensor) -> Tensor:
    """sum_v weight values [n]; a weight of 0 drops its value, be it infinite. No gradient through ``weight``."""
    weight = weight.detach()
    return (weight * torch.where(weight == 0, 0.0, values)).sum(-1)


def full_kl(p: Tensor, q: Tensor) -> Tensor:
    """sum_v q log(q/p) [n] over the whole vocabulary [n,V], with gradient. ``DataError`` if it isn't whole."""
    return weighted_sum(_whole(q), q - p)


def full_control(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """sum_v q log p [n], with gradient, and the KL [n], detached. ``DataError`` if the vocabulary isn't whole."""
    mass = _whole(q)
    control = weighted_sum(mass, p)
    return control, weighted_sum(mass, q) - control.detach()


def _whole(q: Tensor) -> Tensor:
    """e^q [n,V]; ``DataError`` unless it adds up to 1 at each position."""
    mass = q.exp()
    if bool(((mass.sum(-1) - 1).abs() > _MASS_TOLERANCE).any()):
        raise DataError(
            "klpo: estimator 'full' needs the sampler's log-probabilities of the whole vocabulary, but those of "
            "top_logp_behavior don't add up to 1; with the likeliest tokens alone use estimator = 'topk'"
        )
    return mass


def topk_kl(p: Tensor, q: Tensor, floor: float) -> Tensor:
    """sum_H q log(q/p) + q_tail log(q_tail/p_tail) [n], with gradient: all outside of the head [n,K] counts as one
    token. It lacks q_tail KL(q|tail || p|tail). The tails are at least ``floor``; no gradient goes through a floor."""
    mass = q.exp()
    q_tail, p_tail = _tail(mass, floor), _tail(p.exp(), floor)
    return weighted_sum(mass, q - p) + q_tail * (q_tail.log() - p_tail.log())


def topk_control(p: Tensor, q: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """sum_H sg(q - rho e^p) p [n], rho = q_tail / p_tail, whose gradient is minus that of ``topk_kl`` where no floor
    holds; and ``topk_kl`` itself [n], detached."""
    now = p.detach()
    mass, mine = q.exp(), now.exp()
    q_tail, p_tail = _tail(mass, floor), _tail(mine, floor)
    rho = q_tail / p_tail
    return weighted_sum(mass - rho[:, None] * mine, p), weighted_sum(mass, q - now) + q_tail * rho.log()


def _tail(head: Tensor, floor: float) -> Tensor:
    """The mass outside of the head [n,K]: [n], at least ``floor``."""
    return (1 - head.sum(-1)).clamp(min=floor)


def binary_odds(p: Tensor, q: Tensor) -> Tensor:
    """log((1-q)/(1-p)) [n] of the sampled token, detached: the logarithm of omega. ``DataError`` unless both
    probabilities lie strictly between 0 and 1."""
    p, q = p.detach(), q.detach()
    for name, x in (("logp", p), ("logp_behavior", q)):
        bad = ~((x < 0) & x.isfinite())
        if bool(bad.any()):
            raise DataError(
                f"klpo: estimator 'binary' needs 0 < probability < 1, but {name} of {int(bad.sum())} policy tokens is "
                f"like {float(x[bad][0]):g} (a probability that rounds to 1 has log-probability 0). Use estimator = "
                "'mc' or 'topk', or float64"
            )
    return log1mexp(q) - log1mexp(p)


def mean_square(d: Tensor) -> Tensor:
    """Unbiased estimate [B] of (E D)^2 from ``d`` [B,M] of M independent columns: mean^2 - var/(M-1), the mean of the
    products of two different columns. May be negative."""
    return d.mean(1).square() - d.var(1, correction=0) / (d.shape[1] - 1)
