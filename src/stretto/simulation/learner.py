"""A simulated learner: counts versions, learns nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stretto.errors import CheckpointError, InvariantError
from stretto.learner.result import StepResult


class SimulatedLearner:
    """Stands in for a learner where only time matters."""

    def __init__(self) -> None:
        self.version = 0

    def step(self, columns: Any) -> StepResult:
        """The next version."""
        self.version += 1
        return StepResult(self.version, skipped=False)

    def score(self, columns: Any, before: int) -> Any:
        """There is nothing to score."""
        raise InvariantError("a simulated learner has no policy that could score segments")

    def weights(self) -> dict[str, Any]:
        """None to publish."""
        return {}

    def save(self, directory: Path) -> None:
        """Write the version."""
        (directory / "learner.json").write_text(json.dumps({"version": self.version}))

    def load(self, directory: Path) -> None:
        """Restore the version."""
        try:
            self.version = json.loads((directory / "learner.json").read_text())["version"]
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"{directory / 'learner.json'} can't be read: {error}") from error

    def save_model(self, directory: Path) -> None:
        """There is no model."""
