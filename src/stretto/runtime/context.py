"""What a run is made of, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stretto.config.schema import RunConfig
from stretto.control.hooks import Rules
from stretto.control.view import View
from stretto.envs.base import Environment
from stretto.kernel.events import EventLog
from stretto.kernel.waits import Waits
from stretto.learner.result import StepResult
from stretto.pool.group import Group
from stretto.pool.old_logprobs import OldLogprobs
from stretto.rollout.types import SamplingParams
from stretto.runtime.engine_pool import EnginePool
from stretto.runtime.evaluate import Evaluator
from stretto.runtime.inputs import Inputs
from stretto.runtime.late import LateRewards
from stretto.runtime.workers.base import LearnerHandle


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a run is made of. ``on_step(version, groups, stepped)`` sees each trained batch (samples, live view)."""

    config: RunConfig
    rules: Rules
    env: Environment
    engines: EnginePool
    learner: LearnerHandle
    scoring: Any
    sampling: SamplingParams
    log: EventLog
    view: View
    waits: Waits
    out: Path
    max_steps: int
    tasks_in_all: int | None
    evaluator: Evaluator | None = None
    on_step: Callable[[int, list[Group], StepResult], None] = lambda version, groups, stepped: None
    offsets: Callable[[], dict[str, int]] = dict
    """Byte offsets of further append-only files, saved with checkpoints."""
    slice_size: int | None = None
    """Trajectories that one turn of the event loop starts or takes in at most; None: all (in virtual time, and where a
    lag bound of 0 wants all requests of a step to reach the engine together)."""
    on_progress: Callable[[str], None] = lambda line: None
    kill: Callable[[], None] = lambda: None
    """End all worker processes now."""
    top_logprobs: int = 0
    """Likeliest tokens that the engines record per position; ``sampled_logprobs``: independent samples."""
    sampled_logprobs: int = 0
    old_route: str | None = None
    """Who fills in old log-probabilities, where the objective uses them."""
    old_logprobs: OldLogprobs | None = None
    """What such a route scored during rollouts, if it is one that does."""
    late: LateRewards | None = None
    """Rewards that come after their trajectory, where the objective takes them."""
    inputs: Inputs = field(default_factory=dict)
    """Fingerprints of what the run depends on, saved with checkpoints."""


@dataclass(slots=True)
class Outcome:
    """How the run ended."""

    reason: str
