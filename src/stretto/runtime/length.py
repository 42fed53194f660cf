"""How long a run is: learner steps and tasks in all, from ``max_steps``, ``epochs`` and the size of the data."""

from __future__ import annotations

import math

from stretto.config.schema import RunConfig
from stretto.kernel.errors import ConfigError

_ROUNDING = 1e-9
"""``0.29 * 100`` is a little less than 29."""


def run_length(config: RunConfig, epoch_size: int | None) -> tuple[int, int | None]:
    """(steps, tasks); tasks None: without end. Batches run on across the end of an epoch; only the last one of the run
    may be short, unless ``drop_last`` leaves it out."""
    if config.epochs is None:
        return config.max_steps, None
    if epoch_size is None:
        raise ConfigError(f"epochs = {config.epochs:g}: environment {config.env.name!r} has no end; use max_steps")
    tasks, batch = math.floor(config.epochs * epoch_size + _ROUNDING), config.prompts_per_step
    if not tasks:
        raise ConfigError(f"epochs = {config.epochs:g} of {epoch_size} tasks is not one task: raise epochs")
    if config.drop_last and tasks < batch:
        raise ConfigError(
            f"epochs = {config.epochs:g} of {epoch_size} tasks is less than one batch of prompts_per_step = {batch}, "
            "and drop_last = true leaves it out: set drop_last = false, or lower prompts_per_step"
        )
    steps = tasks // batch if config.drop_last else math.ceil(tasks / batch)
    return min(config.max_steps, steps), tasks
