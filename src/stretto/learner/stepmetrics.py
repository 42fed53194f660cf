"""Metrics of a step that come from its batch, before any update."""

from __future__ import annotations

import torch
from torch import Tensor

from stretto.batch import TokenBatch


def batch_metrics(batch: TokenBatch, inner_steps: int) -> dict[str, float]:
    """Tokens, distance, behaviour entropy and the critic's explained variance, where the batch has them.

    ``inner_steps``: optimizer steps on this batch before the last one.
    """
    out: dict[str, float] = {"off_policy/inner_steps": float(inner_steps)}
    if batch.trained_at is not None:  # what comes back for its late reward was counted when it first trained
        batch = batch.select((batch.trained_at < 0).nonzero().squeeze(1))
    if not batch.rows:
        return out
    tokens = int(batch.mask.sum())
    out["tokens/trained"] = float(tokens)
    if batch.versions is not None and tokens:
        out["off_policy/distance"] = float(batch.version - batch.versions[batch.mask].min()) + inner_steps
    if batch.entropy is not None and tokens:
        out["entropy/behavior"] = float(batch.entropy[batch.mask].double().mean())
    if batch.values is not None and batch.targets is not None and tokens:
        out["critic/explained_variance"] = explained_variance(batch.values[batch.mask], batch.targets[batch.mask])
    return out


def explained_variance(values: Tensor, targets: Tensor) -> float:
    """1 - Var(target - value) / Var(target) over policy tokens; 0 where all targets are equal."""
    variance = torch.var(targets.double(), correction=0)
    if float(variance) == 0:
        return 0.0
    return 1 - float(torch.var((targets - values).double(), correction=0) / variance)
