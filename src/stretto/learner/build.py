"""A learner from a configuration."""

from __future__ import annotations

from pathlib import Path

from stretto.config.schema import RunConfig
from stretto.learner.learner import Learner
from stretto.objectives import get
from stretto.objectives.base import Objective


def build_learner(
    model_dir: str | Path, config: RunConfig, max_steps: int, objective: Objective | None = None
) -> Learner:
    """The learner that ``config`` describes; ``max_steps`` ends its learning-rate schedule. ``objective``: where it was
    built before."""
    if objective is None:
        objective = get(config.objective.name, **config.objective.options)
    return Learner(
        model_dir, config.learner, objective, seed=config.seed, temperature=config.sampling.temperature,
        max_steps=max_steps, lag_bound=config.lag_bound, parts=config.weights.parts,
    )  # fmt: skip
