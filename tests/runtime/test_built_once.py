"""What looks for faults and what runs share one environment and one objective: files are read once, and bound once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from stretto.envs.arithmetic import Arithmetic
from stretto.objectives.tis import TIS
from stretto.run.launch import launch

from .harness import configure, tiny


@dataclass
class CountedTask(Arithmetic):
    done: ClassVar[Counter[str]] = Counter()

    def __post_init__(self) -> None:
        self.done["built"] += 1
        super().__post_init__()

    def bind(self, tokenizer: Any, seed: int) -> None:
        self.done["bound"] += 1
        super().bind(tokenizer, seed)


@dataclass(frozen=True, kw_only=True)
class CountedLoss(TIS):
    done: ClassVar[Counter[str]] = Counter()

    def __post_init__(self) -> None:
        self.done["built"] += 1
        super().__post_init__()


@pytest.mark.parametrize("resume", [False, True])
def test_environment_and_objective_are_built_once(resume: bool, model: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = configure(*tiny(model), f"env.name={__name__}:CountedTask", f"objective.name={__name__}:CountedLoss",
                       f"out={run}", "max_steps=2", "eval.tasks=2")  # fmt: skip
    if resume:
        launch(config, "rehearse")
        config = config.model_copy(update={"max_steps": 3})
    CountedTask.done.clear()
    CountedLoss.done.clear()
    launch(config, "rehearse", resume=run if resume else None)
    assert CountedTask.done == {"built": 1, "bound": 1}
    assert CountedLoss.done == {"built": 1}
