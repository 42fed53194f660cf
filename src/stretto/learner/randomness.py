"""Randomness of a step as a function of (seed, version)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def seeded(seed: int, version: int, *stream: int) -> Iterator[None]:
    """Torch's global generator starts from (seed, version, stream) inside, and is put back afterwards."""
    kept = torch.get_rng_state()
    torch.manual_seed(int(np.random.default_rng([seed, version, 1, *stream]).integers(2**63)))
    try:
        yield
    finally:
        torch.set_rng_state(kept)
