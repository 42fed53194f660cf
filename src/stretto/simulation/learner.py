"""A simulated learner: counts versions, learns nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from stretto.data.identity import PolicyVersion
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.kernel.errors import CheckpointError, InvariantError
from stretto.learner.result import Floats, ForwardBackwardResult, Losses, OptimResult, StepResult
from stretto.simulation.costs import CostModel

if TYPE_CHECKING:
    from torch import Tensor

    from stretto.models.lora import Adapter

_UNKNOWN = Losses(math.nan, math.nan, math.nan)
Staged = TypeVar("Staged")


class SimulatedLearner:
    """Stands in for a learner where only time matters: the same verbs in the same order, without numbers."""

    def __init__(self, costs: CostModel | None = None) -> None:
        """``costs``: models what ``score`` says; None: it says nothing."""
        self.version = 0
        self._costs = costs
        self._parts = 0

    def step(self, columns: Columns) -> StepResult:
        """The next version."""
        self._parts += 1
        return StepResult(self.optim_step().version, skipped=False)

    def forward_backward(self, rows: Columns, totals: Totals | None = None) -> ForwardBackwardResult[dict[str, float]]:
        """Count a part of the optimizer step."""
        self._parts += 1
        return ForwardBackwardResult(_UNKNOWN, {}, np.full(int(rows["length"].sum()), np.nan), None)

    def optim_step(self, lr: float | None = None) -> OptimResult[dict[str, float]]:
        """The next version. ``InvariantError`` without a part."""
        if not self._parts:
            raise InvariantError(f"optim_step at version {self.version}: there is no gradient; call forward_backward")
        self._parts = 0
        self.version += 1
        return OptimResult(self.version, False, None, lr or 0.0, 0.0, 0.0, _UNKNOWN, {})

    def score(self, columns: Columns, version: int | None = None) -> Floats:
        """Log-probabilities, flat: what a simulated engine sampled has 0, and the policy has moved away from all of a
        trajectory by the modelled forgetting. ``InvariantError`` for other versions than its own."""
        if version != self.version or self._costs is None:
            raise InvariantError("a simulated learner has no policy of another version that could score segments")
        lengths, last = columns["length"], columns["version_complete"]
        first = np.minimum.reduceat(np.where(columns["mask"], columns["versions"], version), lengths.cumsum() - lengths)
        moved = [self._costs.forgetting(*one) for one in zip(columns["trajectory"].tolist(), (last - first).tolist(),
                                                             strict=True)]  # fmt: skip
        return -np.repeat(np.array(moved), lengths)

    def release(self, before: int) -> None:
        """It holds no version."""

    def stage(self, put: Callable[[PolicyVersion, Mapping[str, Tensor], Adapter | None], Staged]) -> Staged:
        """The version, without weights."""
        return put(PolicyVersion(number=self.version), {}, None)

    def save(self, directory: Path) -> None:
        """Write the version."""
        (directory / "learner.json").write_text(json.dumps({"version": self.version}))

    def load(self, directory: Path) -> None:
        """Restore the version."""
        try:
            self.version = json.loads((directory / "learner.json").read_text())["version"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{directory / 'learner.json'} can't be read: {error}") from error
        self._parts = 0

    def save_model(self, directory: Path) -> None:
        """There is no model."""
