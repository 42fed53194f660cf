"""Metrics that add up exactly over micro-batches: sums, counts and maxima until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from stretto.batch import TokenBatch
from stretto.objectives.ratio import ratio


class Metrics(Mapping[str, float]):
    """Named metrics of one or several micro-batches; ``a + b`` are those of both together.

    ``shares``: name -> (sum, count), read as a mean. ``moments``: name -> (count, sum, sum of squares, maximum),
    read as ``<name>/mean``, ``/std``, ``/max``. ``weights``: (count, sum, sum of squares) of the importance
    weights, read as ``ess`` = (sum w)^2 / (n sum w^2).
    """

    def __init__(self) -> None:
        self.shares: dict[str, Tensor] = {}
        self.moments: dict[str, Tensor] = {}
        self.weights: Tensor | None = None

    def share(self, name: str, values: Tensor, count: int | Tensor) -> None:
        """A mean: the sum of ``values`` over ``count``."""
        total = values.detach().sum(dtype=torch.float64)
        self.shares[name] = torch.stack([total, torch.as_tensor(count, dtype=torch.float64)])

    def moment(self, name: str, values: Tensor) -> None:
        """Mean, standard deviation and maximum of ``values`` (flat)."""
        self.moments[name] = torch.stack([*_sums(values), _peak(values)])

    def weigh(self, weights: Tensor) -> None:
        """The importance weights of the policy tokens (flat)."""
        self.weights = torch.stack(_sums(weights))

    def __add__(self, other: Metrics) -> Metrics:
        out = Metrics()
        out.shares = {**self.shares, **other.shares}
        for name in self.shares.keys() & other.shares.keys():
            out.shares[name] = self.shares[name] + other.shares[name]
        out.moments = {**self.moments, **other.moments}
        for name in self.moments.keys() & other.moments.keys():
            a, b = self.moments[name], other.moments[name]
            out.moments[name] = torch.cat([a[:3] + b[:3], torch.maximum(a[3:], b[3:])])
        parts = [w for w in (self.weights, other.weights) if w is not None]
        out.weights = torch.stack(parts).sum(0) if parts else None
        return out

    def report(self) -> dict[str, float]:
        """All metrics as numbers. What has no token to speak of is left out."""
        out: dict[str, float] = {}
        for name, pair in self.shares.items():
            total, count = pair.tolist()
            if count:
                out[name] = total / count
        for name, row in self.moments.items():
            count, first, second, peak = row.tolist()
            if count:
                mean = first / count
                out[f"{name}/mean"] = mean
                out[f"{name}/std"] = math.sqrt(max(second / count - mean * mean, 0.0))
                out[f"{name}/max"] = peak
        if self.weights is not None:
            count, first, second = self.weights.tolist()
            if count:
                out["ess"] = first * first / (count * second) if second else 0.0
        return out

    def __getitem__(self, name: str) -> float:
        return self.report()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.report())

    def __len__(self) -> int:
        return len(self.report())


def _sums(values: Tensor) -> list[Tensor]:
    values = values.detach().double()
    return [torch.tensor(float(values.numel()), dtype=torch.float64), values.sum(), values.square().sum()]


def _peak(values: Tensor) -> Tensor:
    if not values.numel():
        return torch.tensor(-torch.inf, dtype=torch.float64)
    return values.detach().double().max()


def off_policy(batch: TokenBatch, d: Tensor, weight: Tensor | None = None) -> Metrics:
    """``is_ratio/*``, ``off_policy/kl`` (K3 estimate of KL(behaviour || current), nats) and ``ess``.

    ``d`` [B,T]: log current - log behaviour; ``weight`` [B,T]: what multiplies the score (default: the ratio).
    """
    metrics = Metrics()
    flat = d.detach()[batch.mask].double()
    r = ratio(flat)
    metrics.moment("is_ratio", r)
    metrics.share("off_policy/kl", r - 1 - flat, flat.numel())
    metrics.weigh(r if weight is None else weight.detach()[batch.mask])
    return metrics
