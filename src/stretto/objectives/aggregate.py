"""From a loss per token to one number, with the structural denominators of the whole optimizer step."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError

Aggregation = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "const", "trajectory-sum"]


def aggregate(x: Tensor, batch: TokenBatch, mode: Aggregation, max_length: int | None = None) -> Tensor:
    """Scalar of ``x`` [B,T]: ``token-mean`` sum/N, ``seq-mean-token-mean`` mean_i(sum/n_i), ``seq-mean-token-sum``
    mean_i(sum), ``const`` sum/(B max_length) (Dr.GRPO, arXiv 2503.20783), ``trajectory-sum`` sum/trajectories (a
    trajectory may have several rows; AsyncWebRL, arXiv 2606.05597).

    N, n_i and B count policy tokens and rows before any rejection. No policy tokens: 0 with zero gradient.
    """
    totals = batch.step_totals()
    x = torch.where(batch.mask, x, 0.0)
    if mode == "token-mean":
        return x.sum() / max(totals.tokens, 1)
    if mode == "trajectory-sum":
        return x.sum() / max(totals.trajectories, 1)
    rows = max(totals.rows, 1)
    if mode == "seq-mean-token-mean":
        return (x.sum(1) / batch.mask.sum(1).clamp(min=1)).sum() / rows
    if mode == "seq-mean-token-sum":
        return x.sum() / rows
    if max_length is None:
        raise ConfigError("aggregation 'const' divides by max_length: set it to the longest response in tokens")
    return x.sum() / (rows * max_length)


def mean_nll(logp: Tensor, mask: Tensor) -> Tensor:
    """l_i [B]: mean negative log-probability of the row's policy tokens; 0 for a row without any. With gradient."""
    return -torch.where(mask, logp, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def scale_normalised(x: Tensor, scale: Tensor, floor: float) -> Tensor:
    """``x`` [B,T] divided by its row's ``scale`` [B], detached, at least ``floor``: each row's loss on one scale
    (ASymPO, arXiv 2606.03070)."""
    return x / scale.detach().clamp(min=floor)[:, None]
