"""What one run is asked to be, before any part of it is built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from stretto.config.learner import LearnerConfig
from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules
from stretto.envs.base import Environment
from stretto.learner.schedule import rate_change
from stretto.runtime.inputs import Inputs
from stretto.runtime.manifest import Restored
from stretto.runtime.workers.worker_pool import WorkerPool

OnProgress = Callable[[str], None]


def engine_names(config: RunConfig) -> list[str]:
    """What a run's engines are called, in the log and in error messages. Nothing else is told by a name."""
    return [f"engine-{i}" for i in range(config.engine.count)]


@dataclass(slots=True)
class RunSpec:
    """One run: its configuration, mode, directory, and the checkpoint to go on from."""

    config: RunConfig
    mode: str
    rules: Rules
    out: Path
    restored: Restored | None
    on_progress: OnProgress
    env: Environment
    model_dir: Path | None
    eos_ids: tuple[int, ...]
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
    def virtual(self) -> bool:
        """Does the run's clock jump?"""
        return self.mode != "train"
