"""Learning-rate schedules, without PyTorch: the start of a run looks at them, too."""

from __future__ import annotations

import math

from stretto.config.learner import LearnerConfig


def learning_rate(config: LearnerConfig, version: int, max_steps: int) -> float:
    """Rate of the step that starts at ``version``: linear warm-up to ``config.lr``, then constant, or linear or
    cosine down to ``final_lr_share`` of it at ``max_steps``."""
    if version < config.warmup_steps:
        return config.lr * (version + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    span = max(max_steps - config.warmup_steps, 1)
    done = min((version - config.warmup_steps) / span, 1.0)
    left = 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return config.lr * (config.final_lr_share + (1 - config.final_lr_share) * left)


def policy_rate(config: LearnerConfig, version: int, max_steps: int) -> float:
    """``learning_rate`` of the policy: 0 while a critic trains alone; warm-up and schedule begin after that."""
    alone = config.critic.warmup_steps if config.critic.kind != "none" else 0
    return 0.0 if version < alone else learning_rate(config, version - alone, max_steps - alone)


def rate_change(
    before: LearnerConfig, steps_before: int, now: LearnerConfig, steps_now: int, version: int
) -> tuple[float, float] | None:
    """(rate of the last step, rate of the next one) if what a resumed run was given makes another schedule of it."""
    last, anew = policy_rate(before, version - 1, steps_before), policy_rate(now, version - 1, steps_now)
    due, then = policy_rate(before, version, steps_before), policy_rate(now, version, steps_now)
    if version < 1 or (math.isclose(last, anew, rel_tol=1e-9) and math.isclose(due, then, rel_tol=1e-9)):
        return None
    return last, then
