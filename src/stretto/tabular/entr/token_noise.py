"""Positions whose log-ratio comes from noise alone: drifted logits, or an engine that adds error to probabilities.

Vocabulary-wide softmax distributions of random sharpness, so that positions of low and high entropy (nats) occur
side by side. NumPy, float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import DataError
from stretto.tabular.softmax import softmax

Noise = Literal["drift", "engine"]


@dataclass(frozen=True)
class Law:
    """Per temperature: ``entropy`` H, ``collision`` 1 - sum p^2, and ``scale`` E_p[d^2] / sigma^2."""

    entropy: Floats
    collision: Floats
    scale: Floats


@dataclass(frozen=True)
class Positions:
    """Sampled tokens: ``d`` = current - behaviour log-probability, ``entropy`` of the behaviour distribution that
    sampled them. Both [N]."""

    d: Floats
    entropy: Floats


def entropy(p: Floats) -> Floats:
    """Entropy in nats [...] of distributions ``p`` [..., V]: -sum p log p over the last axis, with 0 log 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)


def first_order_law(
    seed: int = 0, vocabulary: int = 64, sigma: float = 0.05, draws: int = 4000, temperatures: Floats | None = None
) -> Law:
    """Mean squared log-ratio under independent logit noise of size ``sigma``. To first order in sigma it is
    sigma^2 (1 - sum p^2), which lies below sigma^2 H (ENTR, arXiv 2607.22186). ``temperatures``: default 25 from
    0.2 to 8, which multiply standard normal logits."""
    rng = np.random.default_rng(seed)
    rows = []
    for temperature in np.linspace(0.2, 8, 25) if temperatures is None else temperatures:
        logits = rng.normal(size=vocabulary) * temperature
        p = softmax(logits)
        noise = rng.normal(size=(draws, vocabulary)) * sigma
        d = np.log(softmax(logits + noise)) - np.log(p)
        rows.append((entropy(p), 1 - (p**2).sum(), (p * d**2).sum(1).mean() / sigma**2))
    table = np.array(rows)
    return Law(table[:, 0], table[:, 1], table[:, 2])


def positions(noise: Noise, seed: int = 1, count: int = 6000, vocabulary: int = 64) -> Positions:
    """``count`` sampled tokens; logits are normal, their scale uniform in [0.3, 9].

    ``drift``: the learner's logits moved by normal noise of 0.1 since the token was sampled. ``engine``: the engine
    sampled from the learner's probabilities plus normal noise of 3e-4, floored at 1e-9 and renormalised.
    """
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.3, 9, count)
    logits = rng.normal(size=(count, vocabulary)) * scale[:, None]
    p = softmax(logits)
    if noise == "drift":
        behavior, current = p, softmax(logits + rng.normal(size=p.shape) * 0.1)
    elif noise == "engine":
        behavior, current = engine_noise(p, rng.normal(size=p.shape)), p
    else:
        raise DataError(f"unknown noise {noise!r}: drift or engine")
    token = sample(behavior, rng.random(count))
    at = np.arange(count)
    return Positions(np.log(current[at, token]) - np.log(behavior[at, token]), entropy(behavior))


def engine_noise(p: Floats, normal: Floats, size: float = 3e-4, floor: float = 1e-9) -> Floats:
    """What an engine with error samples from: ``p + size * normal``, at least ``floor``, renormalised. Additive in
    probability, as rounding after the softmax is: rounding logits alone doesn't blow up at low entropy."""
    noisy = np.maximum(p + size * normal, floor)
    return np.asarray(noisy / noisy.sum(-1, keepdims=True), np.float64)


def sample(p: Floats, uniform: Floats) -> Ints:
    """One index per row of ``p`` [N,V], by inverting its distribution function at ``uniform`` [N] in [0, 1)."""
    return np.minimum((p.cumsum(1) <= uniform[:, None]).sum(1), p.shape[1] - 1)
