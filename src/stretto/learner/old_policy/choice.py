"""Which route a run takes, and what contradicts it. Free of torch: the front door asks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stretto.config.learner import OldPolicy
from stretto.kernel.errors import ConfigError

if TYPE_CHECKING:
    from stretto.config.schema import RunConfig
    from stretto.objectives.base import Objective

DURING_ROLLOUT = ("old_model", "interrupt")
"""Routes that score tokens while rollouts go on: the loop hands them what was sampled."""


def route_of(config: OldPolicy, objective: Objective) -> str | None:
    """The route's name; None if the objective doesn't use ``logp_old``. By default ``snapshots``, for PPO-EWMA ``ewma``
    (the objective's ``old_route``). ``ConfigError`` for a setting without effect."""
    name = getattr(objective, "component_name", None) or type(objective).__name__
    if "old" not in objective.needs:
        if asked := sorted(config.model_fields_set):
            key = asked[0]
            raise ConfigError(
                f"learner.old_policy.{key} = {getattr(config, key)!r}, but objective {name!r} uses no old "
                "log-probabilities: leave it out, or choose one that does (objective.reference = 'old')"
            )
        return None
    route = str(config.route or getattr(objective, "old_route", "snapshots"))
    for key, of in (("ewma_beta", "ewma"), ("proxy_alpha", "proxy")):
        if getattr(config, key) is not None and route != of:
            raise ConfigError(f"learner.old_policy.{key} belongs to route {of!r}, but the route is {route!r}")
    return route


def contradictions(route: str | None, config: RunConfig) -> Iterator[str]:
    """Settings of the loop under which ``interrupt`` can't interrupt, a line each."""
    if route != "interrupt":
        return
    mode, rule = config.control.in_flight, config.control.publish.name
    what = "learner.old_policy.route = 'interrupt'"
    if mode in ("drain", "pin"):
        yield (
            f"{what} stops rollouts at each update and lets them go on with the new version, but control.in_flight = "
            f"{mode!r} keeps the old one: set 'keep', 'reprefill' or 'abort', or route = 'old_model'"
        )
    if rule != "every-step":
        yield (
            f"{what} needs every engine to load every version, but control.publish.name = {rule!r}: set 'every-step', "
            "or route = 'snapshots'"
        )
    if config.workers.on_engine_crash == "restart":
        yield (
            f"{what} can't go with workers.on_engine_crash = 'restart': an engine that comes up during an interruption "
            "would sample behind the learner's back. Set 'stop', or route = 'snapshots'"
        )
