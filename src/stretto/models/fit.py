"""Does what a configuration asks of its model fit it? Free of torch: the front door asks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from safetensors import safe_open

from stretto.config.schema import RunConfig
from stretto.kernel.errors import ConfigError
from stretto.models.reach import BUILT_IN, LLAMA_MODULES, check_reach


def check_fit(config: RunConfig) -> None:
    """Raise ``ConfigError`` if the engine's rows are longer than the model reads, or if adapters are to sit on modules
    that it lacks. For a directory that ``check_directory`` has passed."""
    lora, built_in = config.learner.lora, BUILT_IN.get(config.model)
    directory = Path(config.model).expanduser()
    setting = f"model = {config.model!r}"
    description = built_in or json.loads((directory / "config.json").read_text())
    check_reach(description, config.engine.max_model_len, setting)
    if lora.rank and lora.targets != ["all-linear"]:
        check_targets(LLAMA_MODULES if built_in else modules_of(directory), lora.targets, config.model)


def check_targets(names: Iterable[str], targets: Sequence[str], model: str) -> None:
    """Raise ``ConfigError`` for a target of adapters that is none of these modules nor the end of one's name."""
    modules = [*names, "lm_head"]  # a tied head isn't in the file
    for target in targets:
        if target != "all-linear" and not any(m == target or m.endswith(f".{target}") for m in modules):
            there = list(dict.fromkeys(m.rpartition(".")[2] for m in modules))
            raise ConfigError(
                f"learner.lora.targets: {target!r} is no module of model = {model!r}; there are {', '.join(there)}. "
                "['all-linear']: every linear one but the head"
            )


def modules_of(directory: Path) -> list[str]:
    """Modules that have a weight of their own, by the headers of the safetensors files."""
    found: dict[str, None] = {}
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="np") as tensors:
            found |= dict.fromkeys(name.removesuffix(".weight") for name in tensors.keys() if name.endswith(".weight"))  # noqa: SIM118
    return list(found)
