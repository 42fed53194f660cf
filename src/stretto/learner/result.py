"""What the learner's verbs answer, as a worker tells it and as the loop passes it on. Free of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]

M = TypeVar("M", bound=Mapping[str, float], covariant=True)
"""The metrics of a result: exact sums (``objectives.metrics.Metrics``) in the learner's process, numbers elsewhere."""


@dataclass(frozen=True, slots=True)
class Losses:
    """``total`` = ``policy`` + ``critic``; ``critic`` is 0 without one. NaN where they couldn't be computed."""

    total: float
    policy: float
    critic: float


@dataclass(frozen=True, slots=True)
class ForwardBackwardResult(Generic[M]):
    """What a pass over some rows gave. Losses are over the denominators of the optimizer step: those of its parts add
    up to those of the step."""

    losses: Losses
    metrics: M
    logp: Floats
    """[sum(length)] log-probability of each policy token under the weights as they are; NaN elsewhere."""
    logp_grad: Floats | None
    """[sum(length)] d(loss) / d(logp); NaN off the policy's tokens. None: only the critic had a gradient."""
    nonfinite: str | None = None
    """What wasn't finite. ``optim_step`` will skip then, whatever else is accumulated."""
    fill_tokens: int = 0
    """Tokens that were read only to fill in old log-probabilities."""

    def plain(self) -> ForwardBackwardResult[dict[str, float]]:
        """The same with metrics as numbers, for a process without torch."""
        return ForwardBackwardResult(
            self.losses, dict(self.metrics), self.logp, self.logp_grad, self.nonfinite, self.fill_tokens
        )


@dataclass(frozen=True, slots=True)
class OptimResult(Generic[M]):
    """What an optimizer step did with the gradient that was accumulated."""

    version: int
    """Of the weights as they are now."""
    skipped: bool
    """The gradient wasn't finite: weights, optimizer and version are those of the last complete version."""
    reason: str | None
    """Which parameter, and which row, of a skipped one."""
    lr: float
    """The policy's learning rate."""
    grad_norm: float
    """Global norm of the policy's gradient before clipping; ``critic_grad_norm`` that of the critic's."""
    critic_grad_norm: float
    losses: Losses
    """Sums over all parts, and ``metrics`` of all of them together."""
    metrics: M

    def plain(self) -> OptimResult[dict[str, float]]:
        """The same with metrics as numbers, for a process without torch."""
        return OptimResult(
            self.version, self.skipped, self.reason, self.lr, self.grad_norm, self.critic_grad_norm, self.losses,
            dict(self.metrics),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. ``skipped``: the gradient was non-finite; weights and optimizer are as before, ``version``
    too, and ``reason`` says which parameter and row. Of a step that wasn't skipped, ``reason`` is a warning.
    ``metrics`` by the names of the metric dictionary."""

    version: int
    skipped: bool
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    ratio: Floats | None = field(default=None, compare=False)
    """[B,T] float32, current over behaviour probability at the start of the step; NaN off the policy's tokens and in
    rows that a later optimizer step trained first. From ``Learner.step``: flat [sum(length)], as its columns."""
    fill_s: float = field(default=0.0, compare=False)
    """Wall seconds that filling ``logp_old`` took, and ``fill_tokens``, the tokens that were read for it."""
    fill_tokens: int = 0
