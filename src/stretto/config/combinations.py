"""Settings that contradict each other, whatever the components are. Each problem is one line."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stretto.data.modes import InFlight

if TYPE_CHECKING:
    from stretto.config.schema import RunConfig


def problems(c: RunConfig) -> Iterator[str]:
    """What can't go together, with what to do about it."""
    yield from _pipeline(c)
    yield from _workers(c)
    yield from _learner(c)
    yield from _tiny(c)
    yield from _samples(c)
    for key, value in c.reward_options.items():
        if isinstance(value, float) and math.isnan(value):
            yield f"reward_options.{key} = nan is not a number"


def _samples(c: RunConfig) -> Iterator[str]:
    asked, most = c.logging.rollouts_per_step, c.prompts_per_step * c.group_size
    if asked > max(most, type(c.logging).model_fields["rollouts_per_step"].default):
        yield (
            f"logging.rollouts_per_step = {asked}, but a step trains on prompts_per_step x group_size = {most} "
            "trajectories: lower it"
        )


def _pipeline(c: RunConfig) -> Iterator[str]:
    if c.depth is not None and c.depth > c.lag_bound:
        yield (
            f"depth = {c.depth:g} is more than lag_bound = {c.lag_bound}: batches so far ahead could "
            "never train in time. Raise lag_bound or lower depth"
        )
    if c.engine.max_model_len < c.sampling.max_new_tokens + 1:
        yield (
            f"sampling.max_new_tokens = {c.sampling.max_new_tokens} does not fit into "
            f"engine.max_model_len = {c.engine.max_model_len} together with a prompt"
        )


def _workers(c: RunConfig) -> Iterator[str]:
    restart = c.workers.on_engine_crash == "restart"
    chosen = {"control.in_flight = 'pin'": c.control.in_flight == InFlight.PIN,
              "control.version_pinning.name = 'pinned'": c.control.version_pinning.name == "pinned"}  # fmt: skip
    for setting in (setting for setting, pins in chosen.items() if pins and restart):
        yield (
            f"workers.on_engine_crash = 'restart' can't go with {setting}: a restarted engine has lost the versions "
            "that its trajectories are pinned to. Use 'stop': a resumed run plays them anew"
        )
    if c.engine.kind == "torch" and c.engine.options:
        yield (
            f"engine.options.{next(iter(c.engine.options))} is an option of no engine: engine.kind = 'torch' has none. "
            "Leave it out, or name the kind that it belongs to"
        )
    if c.workers.kind == "inline":
        if restart:
            yield "workers.on_engine_crash = 'restart' needs processes: set workers.kind = 'process' or use 'stop'"
        if c.workers.own_cores:
            yield "workers.own_cores = true needs processes: set workers.kind = 'process' or leave it out"


def _learner(c: RunConfig) -> Iterator[str]:
    if c.learner.minibatches > c.prompts_per_step:
        yield (
            f"learner.minibatches = {c.learner.minibatches} is more than prompts_per_step = {c.prompts_per_step}: a "
            "mini-batch holds at least one whole group"
        )
    if c.learner.bf16 and c.learner.dtype == "float64":
        yield "learner.bf16 = true contradicts learner.dtype = 'float64': leave one out"
    if c.learner.lora.rank and not c.learner.lora.targets:
        yield "learner.lora.targets = [] with a rank above 0 trains nothing: name modules, or set learner.lora.rank = 0"
    critic = c.learner.critic
    if critic.kind != "none" and 0 < c.max_steps <= critic.warmup_steps:
        yield (
            f"learner.critic.warmup_steps = {critic.warmup_steps} with max_steps = {c.max_steps}: the policy would "
            "never train"
        )
    if critic.kind == "head" and critic.frozen != "none":
        yield (
            f"learner.critic.frozen = {critic.frozen!r} needs a critic with attention of its own: set "
            "learner.critic.kind = 'network'"
        )
    if critic.kind == "network" and critic.coefficient != 1:
        yield (
            f"learner.critic.coefficient = {critic.coefficient:g}, but learner.critic.kind = 'network' shares no "
            "parameters with the policy: leave it out"
        )


def _tiny(c: RunConfig) -> Iterator[str]:
    w = c.sft
    if c.model == "tiny" and (w.hidden % (2 * w.heads) or w.heads % w.kv_heads):
        yield (
            f"sft: hidden = {w.hidden} must be an even multiple of heads = {w.heads}, and heads a multiple of "
            f"kv_heads = {w.kv_heads}"
        )


def contradictions(source: dict[str, object], overrides: dict[str, object]) -> Iterator[str]:
    """What somebody asked for in one breath and can't have. ``source``: the file's table, ``overrides`` those that
    were given beside it. A default (or, for overrides, what the file says) may be overruled without a word."""
    limits = {**_section(source, "deadlines"), **_section(overrides, "deadlines")}
    group, rollout = limits.get("group_s"), limits.get("rollout_s")
    if isinstance(group, int | float) and isinstance(rollout, int | float) and group < rollout:
        yield (
            f"deadlines.group_s = {group:g} is less than deadlines.rollout_s = {rollout:g}: a group would end before "
            "its trajectories may. Raise group_s or lower rollout_s"
        )


def _section(table: dict[str, object], name: str) -> dict[str, object]:
    found = table.get(name)
    return found if isinstance(found, dict) else {}
