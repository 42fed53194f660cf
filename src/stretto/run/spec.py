"""What one run is asked to be: its configuration, looked at, and what the rest of it is built from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.config.learner import LearnerConfig
from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules
from stretto.envs.base import Environment
from stretto.kernel.errors import InvariantError
from stretto.learner.schedule import rate_change
from stretto.models.tokenizer import LightTokenizer
from stretto.runtime.inputs import Inputs
from stretto.runtime.manifest import Restored
from stretto.runtime.workers.worker_pool import WorkerPool

if TYPE_CHECKING:  # torch is for those who compute
    from stretto.objectives.base import Objective

OnProgress = Callable[[str], None]


def engine_names(config: RunConfig) -> list[str]:
    """What a run's engines are called, in the log and in error messages. Nothing else is told by a name."""
    return [f"engine-{i}" for i in range(config.engine.count)]


@dataclass(slots=True)
class Checked:
    """A configuration in which nothing wrong was found, and what was built to find that out. The run is made of these
    parts: nothing is built twice."""

    config: RunConfig
    mode: str
    rules: Rules
    env: Environment
    objective: Objective | None
    """None: a simulation computes no loss."""
    tokenizer: LightTokenizer | None
    """The model's; None: it has none (a simulation), or must be converted first."""
    bound: bool = False
    """Has the environment been given the tokenizer?"""
    notes: list[str] = field(default_factory=list)
    """What is to be said at the start of the environment and its tokenizer."""


@dataclass(slots=True)
class RunSpec:
    """One run: what was checked, its directory, and the checkpoint to go on from."""

    checked: Checked
    out: Path
    restored: Restored | None
    on_progress: OnProgress
    model_dir: Path | None = None
    eos_ids: tuple[int, ...] = ()
    worker_pool: WorkerPool | None = None
    """Worker processes, if there are any."""
    working: Callable[[str, int, int], None] = lambda what, done, total: None
    """Hears how far something long is: what, how many of how many."""
    show: Callable[[list[str]], None] = lambda lines: None
    """Shows what the policy answers."""
    inputs: Inputs = field(default_factory=dict)
    """Fingerprints of what the run depends on."""
    before: LearnerConfig | None = None
    """How the learner was configured up to the checkpoint."""

    def rates(self, steps_before: int, steps_now: int) -> tuple[float, float] | None:
        """Learning rates of the last step before a resume and of the next one, said if the schedule isn't what it was;
        else None."""
        if self.restored is None or self.before is None or self.mode == "simulate":
            return None
        version = self.restored.version
        changed = rate_change(self.before, steps_before, self.config.learner, steps_now, version)
        if changed is not None:
            now = self.config.learner
            ends = f"learner.schedule = {now.schedule!r} now ends at step {steps_now} ({steps_before} before)"
            why = ends if now == self.before else "the learner's settings were changed"
            self.on_progress(
                f"the learning rate goes from {changed[0]:.3g} in step {version - 1} to {changed[1]:.3g} in the next: "
                f"{why}. Set learner.lr, .schedule, .warmup_steps or .final_lr_share with --resume if it shall not"
            )
        return changed

    @property
    def config(self) -> RunConfig:
        """Its settings."""
        return self.checked.config

    @property
    def mode(self) -> str:
        """``train``, ``rehearse`` or ``simulate``."""
        return self.checked.mode

    @property
    def rules(self) -> Rules:
        """One a hook."""
        return self.checked.rules

    @property
    def env(self) -> Environment:
        """The environment, bound once the model's directory is known."""
        return self.checked.env

    @property
    def objective(self) -> Objective:
        """The loss. ``InvariantError`` in a simulation, which computes none."""
        if self.checked.objective is None:
            raise InvariantError("a simulation has no objective")
        return self.checked.objective

    @property
    def virtual(self) -> bool:
        """Does the run's clock jump?"""
        return self.mode != "train"
