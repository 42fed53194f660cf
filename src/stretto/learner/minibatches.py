"""Mini-batches of whole groups, in an order that depends on (seed, version, pass) alone."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch


def minibatch_rows(batch: TokenBatch, minibatches: int, seed: int, version: int, index: int) -> list[Tensor]:
    """Rows of each optimizer step of pass number ``index``. One mini-batch: all rows, in order. With fewer groups
    than mini-batches there are as many mini-batches as groups."""
    if minibatches == 1:
        return [torch.arange(batch.rows)]
    (group,) = batch.need("group")
    number = torch.unique(group, return_inverse=True)[1]
    groups = int(number.max()) + 1 if batch.rows else 0
    order = np.random.default_rng([seed, version, index]).permutation(groups)
    parts = np.array_split(order, min(minibatches, max(groups, 1)))
    return [torch.isin(number, torch.from_numpy(part)).nonzero().squeeze(1) for part in parts]
