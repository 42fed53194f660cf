"""Current over behaviour probability of a batch, noted from the forward passes that a step makes anyway."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stretto.batch import TokenBatch


class Ratios:
    """Filled by the micro-batches of the first optimizer step; NaN elsewhere."""

    def __init__(self, batch: TokenBatch) -> None:
        self._values = torch.full(batch.mask.shape, math.nan) if batch.logp_behavior is not None else None

    def note(self, micro: TokenBatch, rows: Tensor, logp: Tensor) -> None:
        """``logp`` [b,t] of these rows of the batch under the policy that the step starts from."""
        if self._values is not None and micro.logp_behavior is not None:
            ratio = torch.where(micro.mask, (logp.detach() - micro.logp_behavior).exp(), math.nan)
            self._values[rows, : ratio.shape[1]] = ratio.float()

    def numpy(self) -> np.ndarray[Any, Any] | None:
        """[B,T] float32; None without behaviour log-probabilities."""
        return None if self._values is None else self._values.numpy()
