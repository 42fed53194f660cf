"""What one training step did, as the learner tells it and as the loop passes it on."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Staging:
    """``staged`` describes weights that lie in the weight memory; writing them took ``seconds``."""

    staged: Any
    seconds: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step did. ``skipped``: the gradient was non-finite; weights and optimizer are as before, ``version``
    too, and ``reason`` says which parameter and row. Of a step that wasn't skipped, ``reason`` is a warning.
    ``metrics`` by the names of the metric dictionary."""

    version: int
    skipped: bool
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str | None = None
    ratio: np.ndarray[Any, Any] | None = field(default=None, compare=False)
    """[B,T] float32, current over behaviour probability at the start of the step; NaN off the policy's tokens and in
    rows that a later optimizer step trained first. From ``Learner.step``: flat [sum(length)], as its columns."""
    fill_s: float = field(default=0.0, compare=False)
    """Wall seconds that filling ``logp_old`` took, and ``fill_tokens``, the tokens that were read for it."""
    fill_tokens: int = 0
    staging: Awaitable[Staging] | None = field(default=None, compare=False)
    """Gives the new weights once they are staged, which the next step need not wait for. None: the step was skipped,
    or whoever made this result leaves staging to the handle of the learner."""
