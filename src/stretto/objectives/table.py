"""What a method does to one token's score, measured: the gradient table of ``stretto objectives``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.aggregate import aggregate
from stretto.objectives.base import Objective
from stretto.objectives.registry import REGISTRY

RATIOS = (0.1, 0.9, 1.0, 1.1, 10.0)
COMPANIONS = 15
"""Tokens beside the one that is measured, with log-ratios spread evenly over +-``COMPANION_SPREAD`` and advantage 0:
methods that look at the whole step (quantiles, second moments, group sums) see one outlier in a fresh batch."""
COMPANION_SPREAD = 0.05
_P, _OTHER_LOGP, _ENTROPY = 0.09, -5.0, 1.0

_CURRENT: dict[str, object] = {"numerator": "current"}
"""The probe holds proximal log-probabilities, at which their ratio would be 1."""
_EXAMPLES: dict[str, dict[str, object]] = {
    "dr-grpo": {"max_length": 64},
    "entr": {"tau": 1.0},
    "tis": _CURRENT,
    "mis": _CURRENT,
    "icepop": _CURRENT,
}


@dataclass(frozen=True)
class GradientRow:
    """``multiplier`` of A grad logp, for a token with this ``advantage`` and ``ratio`` to its reference."""

    advantage: float
    ratio: float
    multiplier: float


def example(name: str, **options: object) -> Objective:
    """The objective called ``name``; options that it requires and that aren't given get a reasonable value."""
    return REGISTRY.build(name, _EXAMPLES.get(name, {}) | options)


def probe(ratio: float, advantage: float, staleness: int = 1) -> tuple[TokenBatch, Tensor, Tensor]:
    """(batch, logp [B,1], advantages [B,1]) in float64: row 0 is the probe, whose log-probability is log ``ratio``
    above behaviour, proximal and old policy (which agree); the other rows are companions of the same group. Every row
    is one token of its own trajectory, sampled ``staleness`` versions ago. Rewards equal the advantages."""
    rows = 1 + COMPANIONS
    spread = torch.linspace(-COMPANION_SPREAD, COMPANION_SPREAD, COMPANIONS, dtype=torch.float64)
    d = torch.cat([torch.tensor([math.log(ratio)], dtype=torch.float64), spread])[:, None]
    # likely enough for divergences to show, yet the behaviour's probability stays below 1
    logp = torch.full((rows, 1), math.log(min(_P, 0.9 * ratio)), dtype=torch.float64)
    a = torch.zeros(rows, 1, dtype=torch.float64)
    a[0] = advantage
    other = torch.full((rows, 1, 2), _OTHER_LOGP, dtype=torch.float64)
    batch = TokenBatch(
        mask=torch.ones(rows, 1, dtype=torch.bool),
        tokens=torch.zeros(rows, 1, dtype=torch.int64),
        logp_behavior=logp - d,
        logp_proximal=logp - d,
        logp_old=logp - d,
        entropy=torch.full((rows, 1), _ENTROPY, dtype=torch.float64),
        values=torch.zeros(rows, 1, dtype=torch.float64),
        rewards=a.clone(),
        versions=torch.zeros(rows, 1, dtype=torch.int64),
        group=torch.zeros(rows, dtype=torch.int64),
        trajectory=torch.arange(rows),
        reward_fast=a[:, 0].clone(),
        reward_slow=torch.full((rows,), math.nan, dtype=torch.float64),
        trained_at=torch.full((rows,), -1),
        sampled_tokens=torch.ones(rows, 1, 2, dtype=torch.int64),
        sampled_logp_behavior=other,
        top_tokens=torch.tensor([1, 2]).expand(rows, 1, 2),
        top_logp_behavior=other,
        sampled_logp_current=other,
        top_logp_current=other,
        version=staleness,
    )
    return batch, logp, a


def gradient_table(objective: Objective, ratios: Sequence[float] = RATIOS, staleness: int = 1) -> list[GradientRow]:
    """Multiplier on A grad logp for A = 1 and A = -1 at each ratio, by autograd on ``probe`` batches.

    The loss's own denominator is divided out; where a method adds a term that A doesn't multiply, its share is in the
    number, too. ``staleness`` in versions, for methods that look at it.
    """
    rows = []
    for advantage in (1.0, -1.0):
        for r in ratios:
            batch, logp, a = probe(r, advantage, staleness)
            logp.requires_grad_()
            loss = objective(batch, logp, None, a)
            (gradient,) = torch.autograd.grad(loss.policy, logp)
            unit = torch.ones_like(logp).requires_grad_()
            total = aggregate(unit, batch, objective.aggregation, objective.max_length)
            (share,) = torch.autograd.grad(total, unit)
            # + 0.0: no negative zeros
            rows.append(GradientRow(advantage, r, float(-gradient[0, 0] / share[0, 0] / advantage) + 0.0))
    return rows
