"""Metrics that add up exactly over micro-batches: sums, counts and maxima until somebody reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.metrics import Metric, Section, declare
from stretto.objectives.ratio import ratio

OWN = declare(
    __name__,
    Metric(Section.POLICY, "off_policy/kl", "nats", "KL(sampling policy, current), estimate K3",
           "below 0.1, no trend", "the first sign of a collapse: lower L or `learner.lr`"),
    Metric(Section.POLICY, "ess", "share", "effective sample size of the weights that the objective uses (the plain "
           "ratios, if it has no others), over their number", "above 0.3", "few samples carry the update"),
    Metric(Section.POLICY, "ratio/clipped_fraction", "share", "tokens whose weight was cut to a cap", "0 to 0.2"),
    Metric(Section.POLICY, "ppo/clip_fraction", "share", "tokens at which the clip binds", "0 to 0.3",
           "the step is too large or the data too old"),
    Metric(Section.POLICY, "gate/{kept_tokens,kept_sequences}", "share", "past the objective's gate", "at least 0.8"),
    Metric(Section.POLICY, "gate/{masked_tokens,capped_tokens,capped_sequences}", "share",
           "masked or capped by the objective's gate", "at most 0.2"),
    Metric(Section.POLICY, "gate/sequence_weight/{mean,std,max}", "ratio", "weight of a whole trajectory", "near 1"),
)  # fmt: skip


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

    def clipped(self, binds: Tensor, mask: Tensor) -> None:
        """The tokens [B,T] at which the clip binds."""
        self._of_tokens("ppo/clip_fraction", binds, mask)

    def truncated(self, cut: Tensor, mask: Tensor) -> None:
        """The tokens [B,T] whose weight was cut to a cap."""
        self._of_tokens("ratio/clipped_fraction", cut, mask)

    def kept(self, kept: Tensor, mask: Tensor) -> None:
        """The tokens [B,T] that pass the gate; in (0, 1) where it is smooth."""
        self._of_tokens("gate/kept_tokens", kept, mask)

    def masked(self, masked: Tensor, mask: Tensor) -> None:
        """The tokens [B,T] that the gate masks."""
        self._of_tokens("gate/masked_tokens", masked, mask)

    def capped(self, capped: Tensor, mask: Tensor) -> None:
        """The tokens [B,T] whose weight the gate caps."""
        self._of_tokens("gate/capped_tokens", capped, mask)

    def kept_sequences(self, kept: Tensor, mask: Tensor) -> None:
        """Rows with a token [B,T] that passes the gate."""
        self.share("gate/kept_sequences", (kept & mask).any(1), mask.any(1).sum())

    def capped_sequences(self, capped: Tensor, weight: Tensor, mask: Tensor) -> None:
        """Rows whose ``weight`` [B,T], one a row, the gate caps."""
        self.share("gate/capped_sequences", (capped & mask).any(1), mask.any(1).sum())
        self.moment("gate/sequence_weight", weight[mask])

    def _of_tokens(self, name: str, chosen: Tensor, mask: Tensor) -> None:
        self.share(name, torch.where(mask, chosen, 0), mask.sum())

    @property
    def names(self) -> list[str]:
        """What ``report`` can name."""
        moments = [f"{name}/{part}" for name in self.moments for part in ("mean", "std", "max")]
        return [*self.shares, *moments, *(() if self.weights is None else ("ess",))]

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
    """``off_policy/kl`` (K3 estimate of KL(behaviour || current), nats) and ``ess``.

    ``d`` [B,T]: log current - log behaviour; ``weight`` [B,T]: what multiplies the score (default: the ratio).
    """
    metrics = Metrics()
    flat = d.detach()[batch.mask].double()
    r = ratio(flat)
    metrics.share("off_policy/kl", r - 1 - flat, flat.numel())
    metrics.weigh(r if weight is None else weight.detach()[batch.mask])
    return metrics
