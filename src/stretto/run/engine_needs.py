"""What a run asks of its engines, from the configuration and the objective, held against what their kind can do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stretto.config.schema import RunConfig
from stretto.control.version_pinning import may_pin
from stretto.kernel.errors import ConfigError
from stretto.learner.old_policy.choice import DURING_ROLLOUT, route_of
from stretto.rollout.capabilities import Capabilities
from stretto.runtime.workers.kinds import TORCH, find_kind

MOST_ALTERNATIVES = 4096
"""Log-probabilities that an engine can be asked to record at one position: 32 KB each in the pool."""
CAN = {
    "entropy": "records the entropy of what it samples from",
    "top_logprobs": "records the likeliest tokens at each position",
    "sampled_logprobs": "records independent samples at each position",
    "distribution": "records the distribution that each token was sampled from",
    "pinned_versions": "holds older versions for groups that are pinned to one",
    "partial": "tells what running requests have sampled so far",
    "interrupt": "stops sampling until it loads weights",
    "pause": "pauses requests",
    "move": "hands running requests over to another one",
    "restarts": "comes up again after its death",
    "distance": "tells how far its weights have moved",
}
"""What each capability means, after "an engine that"."""


def check_engine(config: RunConfig, mode: str, objective: Any, records: tuple[int, int]) -> None:
    """Raise ``ConfigError`` for everything that the run needs and its kind of engine can't do. ``records``: what
    ``recorded`` gave."""
    kind, can = config.engine.kind, find_kind(config, mode).capabilities
    found = [
        f"{who} needs an engine that {CAN[what]}, and engine.kind = {kind!r} doesn't: {instead}"
        for what, who, instead in _needs(config, objective, records)
        if not getattr(can, what)
    ]
    if mode == "rehearse" and kind != TORCH:  # a kind of one's own waits for more than the virtual clock
        found.append(
            f"`stretto rehearse` needs an engine that runs on the virtual clock, and engine.kind = {kind!r} doesn't: "
            f"use engine.kind = {TORCH!r}, or `stretto train`"
        )
    if (mode_ := config.control.in_flight) not in can.in_flight:
        found.append(
            f"control.in_flight = {mode_!r} is nothing that engine.kind = {kind!r} can do with running requests when "
            f"weights change: set {_any_of(can.in_flight)}"
        )
    if kind != TORCH and can.transports is not None and config.weights.transport not in can.transports:
        found.append(
            f"weights.transport = {config.weights.transport!r} is nothing that engine.kind = {kind!r} can fetch from: "
            f"set {_any_of(can.transports)}"
        )
    parts = config.weights.parts if config.learner.lora.rank else "merged"
    if not can.parts & ({"merged", "adapter"} if parts == "both" else {parts}):
        found.append(
            f"weights.parts = {parts!r} publishes nothing that engine.kind = {kind!r} loads: set {_any_of(can.parts)}"
        )
    if found:
        raise ConfigError("\n".join(found))


def notes(config: RunConfig, can: Capabilities) -> list[str]:
    """What this kind of engine does less well than another one."""
    if config.save_partial and not can.partial:
        return [f"engine.kind = {config.engine.kind!r} can't tell what running requests have sampled so far: a resumed "
                "run begins their turns anew"]  # fmt: skip
    return []


def _any_of(names: frozenset[str]) -> str:
    return " or ".join(map(repr, sorted(names)))


def _needs(
    config: RunConfig, objective: Any, records: tuple[int, int]
) -> Iterator[tuple[str, str, str]]:  # fmt: skip
    """(capability, who needs it, what to do instead)."""
    name, engine, sampling = f"objective.name = {config.objective.name!r}", config.engine, config.sampling
    if getattr(objective, "reads_entropy", False):
        yield "entropy", name, "choose another objective"
    for what, n in zip(("top_logprobs", "sampled_logprobs"), records, strict=True):
        asked = getattr(engine, what)
        instead = f"set engine.{what} = 0" if asked else "choose another objective or estimator"
        if n:
            yield what, f"engine.{what} = {n}" if asked else name, instead
    if sampling.top_k or sampling.top_p < 1:
        filters = f"sampling.top_k = {sampling.top_k}, top_p = {sampling.top_p:g}"
        yield "distribution", filters, "set sampling.top_k = 0 and top_p = 1"
    if may_pin(config):
        pins = config.control.version_pinning.name
        who = "control.in_flight = 'pin'" if pins == "latest" else f"control.version_pinning.name = {pins!r}"
        yield "pinned_versions", who, "let groups move to newer weights (control.version_pinning.name = 'latest')"
    route = route_of(config.learner.old_policy, objective)
    if route in DURING_ROLLOUT:
        who = f"learner.old_policy.route = {route!r}"
        yield "partial", who, "set route = 'snapshots'"
        if route == "interrupt":
            yield "interrupt", who, "set route = 'snapshots'"
    if (rule := config.control.preemption.name) != "stay":
        for what in ("pause", "move"):
            yield what, f"control.preemption.name = {rule!r}", "leave it out"
    if config.workers.on_engine_crash == "restart":
        yield "restarts", "workers.on_engine_crash = 'restart'", "set 'stop'"
    if config.eval.tasks and config.eval.weight_drift:
        yield "distance", "eval.weight_drift = true", "leave it out"


def recorded(config: RunConfig, objective: Any, model: Path | int | None) -> tuple[int, int]:
    """(K, M): how many likeliest tokens and independent samples the engine records at each position, for the objective
    or because ``engine.top_logprobs`` and ``engine.sampled_logprobs`` say so. ``model``: its directory, or the size of
    its vocabulary if something depends on it. ``ConfigError`` if that can't be."""
    needs, name = objective.needs, config.objective.name
    engine, samples, head = config.engine, 0, 0
    for need in sorted({"sampled", "top"} & needs):
        if not hasattr(objective, need):
            raise ConfigError(
                f"objective.name = {name!r}: its needs name {need!r}, but it has no attribute `{need}`: how many?"
            )
    if "sampled" in needs:
        samples = objective.sampled
        if samples > MOST_ALTERNATIVES:
            raise ConfigError(
                f"objective.name = {name!r} asks for {samples} samples at each position; at most {MOST_ALTERNATIVES} "
                "can be recorded: lower objective.M"
            )
        if engine.sampled_logprobs not in (0, samples):
            raise ConfigError(
                f"engine.sampled_logprobs = {engine.sampled_logprobs}, but objective.name = {name!r} needs {samples}: "
                "leave engine.sampled_logprobs out"
            )
    size = _size(model) if "top" in needs or engine.top_logprobs else 0
    if "top" in needs:
        whole = objective.top is None
        head = size if whole else objective.top
        if whole and size > MOST_ALTERNATIVES:
            raise ConfigError(
                f"objective.name = {name!r} asks for the whole vocabulary at each position, which here has {size} "
                f"tokens; at most {MOST_ALTERNATIVES} can be recorded. Use objective.estimator = 'mc' or 'topk'"
            )
        if not whole and head >= size:
            raise ConfigError(
                f"objective.name = {name!r} asks for the {head} likeliest tokens, but the vocabulary has {size}: lower "
                "objective.K, or take the whole vocabulary with objective.estimator = 'full'"
            )
        if engine.top_logprobs not in (0, head):
            raise ConfigError(
                f"engine.top_logprobs = {engine.top_logprobs}, but objective.name = {name!r} needs {head}: leave "
                "engine.top_logprobs out"
            )
    if engine.top_logprobs > size:
        raise ConfigError(f"engine.top_logprobs = {engine.top_logprobs}: the model's vocabulary has {size} tokens")
    return head or engine.top_logprobs, samples or engine.sampled_logprobs


def _size(model: Path | int | None) -> int:
    assert model is not None
    return model if isinstance(model, int) else vocabulary_of(model)


def vocabulary_of(directory: Path) -> int:
    """Tokens that the model in this directory gives a probability."""
    description = json.loads((directory / "config.json").read_text())
    size = description.get("vocab_size") or (description.get("text_config") or {}).get("vocab_size")
    if not size:
        raise ConfigError(f"{directory / 'config.json'} doesn't say vocab_size: how many tokens to record is unknown")
    return int(size)
