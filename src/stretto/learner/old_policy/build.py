"""The route that a configuration asks for."""

from __future__ import annotations

from stretto.config.learner import Critic, LearnerConfig
from stretto.learner.old_policy.base import OldPolicyRoute
from stretto.learner.old_policy.choice import route_of
from stretto.learner.old_policy.ewma import Average
from stretto.learner.old_policy.interrupt import Interrupt
from stretto.learner.old_policy.old_model import OldModel
from stretto.learner.old_policy.proxy import Proxy
from stretto.learner.old_policy.recompute import Recompute
from stretto.learner.old_policy.snapshots import Snapshots
from stretto.learner.scores import Scorer
from stretto.objectives.base import Objective


def build_route(
    scorer: Scorer,
    config: LearnerConfig,
    objective: Objective,
    *,
    model_dir: str,
    seed: int,
    temperature: float,
    lag_bound: int,
) -> OldPolicyRoute | None:
    """None if the objective doesn't use ``logp_old``; ``ConfigError`` for a setting without effect."""
    old, most = config.old_policy, config.micro_batch_tokens
    route = route_of(old, objective)
    if route == "recompute":
        return Recompute(scorer, most)
    if route == "snapshots":
        return Snapshots(scorer, most, lag_bound)
    if route == "old_model":
        alone = config.model_copy(update={"critic": Critic(), "gradient_checkpointing": False})
        return OldModel(scorer, most, Scorer(model_dir, alone, seed, temperature))
    if route == "interrupt":
        return Interrupt(scorer, most)
    if route == "ewma":
        return Average(scorer, most, old.ewma_beta)
    if route == "proxy":
        return Proxy(scorer, most, old.proxy_alpha)
    return None
