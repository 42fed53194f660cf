"""A policy that can't learn any more, noticed: uniform, or without gradient, for several steps in a row."""

from __future__ import annotations

import math

_STEPS = 5
_UNIFORM_WITHIN = 1e-3


class CollapseWatch:
    """Sees each step's mean entropy (nats) and gradient norm; speaks once in its life."""

    def __init__(self, vocabulary: int) -> None:
        self._uniform_entropy = math.log(vocabulary)
        self._uniform_steps = 0
        self._still_steps = 0
        self._spoke = False

    def see(self, entropy: float, grad_norm: float) -> str | None:
        """A warning when the last steps were all alike, the first time only."""
        uniform = abs(entropy - self._uniform_entropy) < _UNIFORM_WITHIN
        self._uniform_steps = self._uniform_steps + 1 if uniform else 0
        self._still_steps = self._still_steps + 1 if grad_norm == 0 else 0
        if self._spoke or max(self._uniform_steps, self._still_steps) < _STEPS:
            return None
        self._spoke = True
        if self._uniform_steps >= _STEPS:
            return (
                f"the policy was uniform for {_STEPS} steps (entropy {entropy:.4f}, the logarithm of its vocabulary): "
                "it may have collapsed; lower learner.lr, or look at the samples"
            )
        return (
            f"no gradient for {_STEPS} steps: all rewards of each group are equal, or the policy has collapsed; see "
            "reward/trained/mean and the samples, lower learner.lr, or choose tasks whose rewards differ"
        )
