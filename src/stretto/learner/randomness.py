"""Randomness of a step as a function of (seed, version)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


class DropoutStream:
    """Draws that begin at (seed, version, stream) and go on where they were left."""

    def __init__(self, seed: int, version: int, *stream: int) -> None:
        self._seed = int(np.random.default_rng([seed, version, 1, *stream]).integers(2**63))
        self._state: torch.Tensor | None = None

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Torch's global generator is this stream inside, and is put back afterwards."""
        kept = torch.get_rng_state()
        if self._state is None:
            torch.manual_seed(self._seed)
        else:
            torch.set_rng_state(self._state)
        try:
            yield
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(kept)
