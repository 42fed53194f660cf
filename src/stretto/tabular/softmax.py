"""Probabilities of logits."""

from __future__ import annotations

import numpy as np

from stretto.data.arrays import Floats


def softmax(logits: Floats) -> Floats:
    """Probabilities [...] of ``logits`` [...]: exp(logits) over its sum along the last axis."""
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True))
