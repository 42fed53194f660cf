"""Rewards that arrive after their trajectory trained: age weights, the correction, and how much of it can arrive
(RAC, arXiv 2606.27580)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stretto.kernel.errors import ConfigError

BRANCH_CROSSING = 1.5936242600400401
"""KL in nats at which KL / 2 = 1 - e^-KL: above it, the second branch of ``bias_bound`` is the smaller one."""


def age_weight(delay: Tensor, tau: float) -> Tensor:
    """w_age = exp(-D / tau), ``delay`` D >= 0 in optimizer steps."""
    return (-delay / tau).exp()


def correction(residual: Tensor, delay: Tensor, rho: Tensor, tau: float, alpha: float, limit: float) -> Tensor:
    """w_age rho alpha (r_slow - m_hat), cut to +-``limit``. All [n], a trajectory each: ``residual`` r_slow - m_hat,
    ``delay`` in optimizer steps, ``rho`` the clipped ratio of the sequence."""
    return (age_weight(delay, tau) * rho * alpha * residual).clamp(-limit, limit)


def adaptive_tau(delays: Tensor, kappa: float, initial: float = 50.0, fewest: int = 5) -> float:
    """tau = kappa times the 0.95 quantile of the ``delays`` seen so far [n]; ``initial`` with fewer than ``fewest``.
    ``ConfigError`` unless kappa > 0; at least one step, so that immediate rewards don't make it 0 [inferred]."""
    if not kappa > 0:
        raise ConfigError(f"kappa = {kappa} must be above 0")
    if delays.numel() < fewest:
        return initial
    return max(kappa * float(torch.quantile(delays.double(), 0.95)), 1.0)


def age_kernel(chance: Tensor, tau: float) -> Tensor:
    """Lambda [K,D]: the chance [K,D] that channel k's reward is D steps late, times the age weight of D."""
    delay = torch.arange(chance.shape[-1], dtype=chance.dtype, device=chance.device)
    return chance * age_weight(delay, tau)


def kernel_mass(kernel: Tensor) -> Tensor:
    """sum_D Lambda[k,D] [K]. The correction is unbiased iff it is 1 for each channel k."""
    return kernel.sum(-1)


def cumulated(kernel: Tensor, contributions: Tensor) -> Tensor:
    """sum_{k,D} Lambda[k,D] c_k: what ``contributions`` [K,...] of slow channels amount to in the end. It differs from
    their sum by sum_k (mass_k - 1) c_k."""
    return torch.einsum("k,k...->...", kernel_mass(kernel), contributions)


def geometric_mass(p: float, tau: float) -> float:
    """Mass of the age weight under geometric delays P(D) = p (1 - p)^D: p / (1 - (1 - p) e^(-1/tau))."""
    return p / (1 - (1 - p) * math.exp(-1 / tau))


def bias_bound(kl: float, v_max: float, gamma: float) -> float:
    """2 v_max / (1 - gamma) min(sqrt(KL / 2), sqrt(1 - e^-KL)): how far values can be off under a behaviour policy at
    ``kl`` nats."""
    return 2 * v_max / (1 - gamma) * math.sqrt(min(kl / 2, -math.expm1(-kl)))
