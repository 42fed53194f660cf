"""Log-probabilities that an old-policy route gave to tokens before their trajectory trained."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from stretto.data.schema import Columns

Floats = NDArray[np.float64]


class OldLogprobs:
    """By trajectory, one number per token from its beginning on; NaN where the policy didn't sample. Whatever the
    policy sampled up to there has one: later tokens are of versions that hadn't ended."""

    def __init__(self) -> None:
        self._of: dict[int, Floats] = {}

    def reach(self, trajectory: int) -> int:
        """Tokens of this trajectory up to which nothing is left to score."""
        return len(self._of[trajectory]) if trajectory in self._of else 0

    def add(self, trajectory: int, logprobs: Floats) -> None:
        """``logprobs`` [n]: of its first n tokens; NaN at places that were scored before or aren't the policy's."""
        known = self._of.get(trajectory)
        if known is not None:
            logprobs = logprobs.copy()
            logprobs[: len(known)] = known
        self._of[trajectory] = logprobs

    def keep(self, trajectories: Iterable[int]) -> None:
        """Forget all others."""
        self._of = {t: self._of[t] for t in trajectories if t in self._of}

    def column(self, columns: Columns) -> Floats:
        """Flat [sum(length)], for these packed trajectories; NaN where nothing was scored."""
        parts = []
        for trajectory, length in zip(columns["trajectory"].tolist(), columns["length"].tolist(), strict=True):
            part = np.full(length, np.nan)
            known = self._of.get(trajectory)
            if known is not None:
                part[: len(known)] = known
            parts.append(part)
        return np.concatenate(parts) if parts else np.empty(0)

    def pack(self) -> Columns:
        """All of it, for a checkpoint."""
        return {
            "trajectory": np.array(list(self._of), np.int64),
            "length": np.array([len(x) for x in self._of.values()], np.int64),
            "logprobs": np.concatenate([np.empty(0), *self._of.values()]),
        }

    def restore(self, packed: Columns, trajectories: Iterable[int]) -> None:
        """What ``pack`` gave, of these trajectories: one that starts over isn't among them."""
        ends = np.cumsum(packed["length"])
        parts = np.split(packed["logprobs"], ends[:-1]) if len(ends) else []
        self._of = dict(zip(packed["trajectory"].tolist(), parts, strict=True))
        self.keep(set(trajectories))
