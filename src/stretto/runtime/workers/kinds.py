"""Kinds of engines: the built-in one and ``module:Class``, found by the setting ``engine.kind``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stretto.config.plugins import plugin_errors
from stretto.config.schema import RunConfig
from stretto.config.sections import EngineConfig
from stretto.kernel.components import load_object
from stretto.kernel.errors import ConfigError, did_you_mean
from stretto.rollout.capabilities import Capabilities
from stretto.runtime.workers.base import EngineHandle
from stretto.runtime.workers.inline import InlineEngine
from stretto.runtime.workers.process import ProcessEngine

if TYPE_CHECKING:
    from torch import Tensor

    from stretto.weights.staged import StagedWeights

TORCH = "torch"
"""The built-in kind: our own engine."""
SETTING = "engine.kind"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What an engine of a run is built from: the first argument of a kind's class."""

    name: str
    """Its name in the run and its log, ``engine-0`` and so on."""
    model_dir: Path
    """The model that the run begins with, in Transformers format (configuration, tokenizer, weights)."""
    config: EngineConfig
    """``max_num_seqs``, ``max_model_len``: limits that it keeps, ``count`` engines in all."""
    seed: int
    """Of the run. Sampling noise is a function of it, ``Request.noise_key`` and the token's position, as far as the
    engine's sampler allows that."""
    eos_ids: tuple[int, ...]
    """Token ids that end every completion and belong to it."""
    directory: Path
    """A directory of the run for logs of its own."""
    fetch: Callable[[StagedWeights], dict[str, Tensor]]
    """The tensors that were staged, verified, in this process, whatever the transport. An engine that reads them
    elsewhere looks at ``StagedWeights.where`` itself."""


def find_kind(config: RunConfig, mode: str) -> type[EngineHandle]:
    """The class of the engines of a run: ``ConfigError`` if there is none, or it isn't a kind of engine."""
    name = config.engine.kind
    if name == TORCH:
        return InlineEngine if mode == "rehearse" or config.workers.kind == "inline" else ProcessEngine
    if ":" not in name:
        raise ConfigError(f"{SETTING} = {name!r}: no such kind; {did_you_mean(name, [TORCH])}, or `module:Class`")
    with plugin_errors(SETTING, name):
        found: object = load_object(name, SETTING)
    if not (inspect.isclass(found) and issubclass(found, EngineHandle)):
        raise ConfigError(f"{SETTING} = {name!r}: not a subclass of stretto.runtime.workers.base.EngineHandle")
    if missing := sorted(found.__abstractmethods__):
        raise ConfigError(f"{SETTING} = {name!r}: this class lacks {', '.join(f'`{m}`' for m in missing)}")
    if not isinstance(getattr(found, "capabilities", None), Capabilities):
        raise ConfigError(f"{SETTING} = {name!r}: this class has no `capabilities` (stretto.rollout.capabilities)")
    _check_options(found, config)
    return found


def _check_options(kind: type[EngineHandle], config: RunConfig) -> None:
    """``engine.options`` are the keyword arguments of the class, beside its spec."""
    known = [p.name for p in list(inspect.signature(kind).parameters.values())[1:] if p.kind is not p.VAR_POSITIONAL]
    for option in config.engine.options:
        if option not in known:
            raise ConfigError(f"engine.options.{option}: {config.engine.kind!r} has no such option; "
                              + (did_you_mean(option, known) if known else "it has none"))  # fmt: skip
    try:
        inspect.signature(kind).bind(None, **config.engine.options)
    except TypeError as error:
        raise ConfigError(f"engine.options: {config.engine.kind!r}: {error}") from error
