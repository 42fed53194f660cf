"""Writes ``docs/config.md`` from the configuration models and the components: ``python docs/reference.py``.

A test compares the file with what this writes, so the reference can't go stale.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from stretto.config.rewards import RewardFunction
from stretto.config.schema import RunConfig
from stretto.config.sections import Component
from stretto.control.hooks import HOOKS
from stretto.envs.base import ENVIRONMENTS
from stretto.envs.verifiers import VERIFIERS
from stretto.kernel.components import options_of, type_text
from stretto.objectives import REGISTRY

TARGET = Path(__file__).with_name("config.md")
HEAD = """# Configuration reference

Written from the models by `python docs/reference.py`; don't edit.

A run is a TOML file (or a recipe's name) plus `key=value` overrides: `stretto train quickstart lag_bound=4
learner.lr=1e-4`. Values are TOML; anything that isn't is a string. An unknown key is an error that names the nearest
known one. `stretto train ... --dry-run` prints the whole resolved configuration; it is saved with the run.
"""


def main() -> None:
    """Write the file."""
    TARGET.write_text(text())


def text() -> str:
    """The whole reference."""
    parts = [HEAD, "## The run\n", table(RunConfig, "")]
    for name, field in RunConfig.model_fields.items():
        model = model_of(field.annotation)
        if model is None or model is Component:
            continue
        parts += [f"## `{name}`\n", paragraph(model), table(model, f"{name}.")]
        for inner_name, inner in model.model_fields.items():
            section = model_of(inner.annotation)
            if section is not None and section is not Component:
                parts += [f"### `{name}.{inner_name}`\n", paragraph(section), table(section, f"{name}.{inner_name}.")]
    parts += ["## Components\n", "Options stand beside `name` in the component's section.\n"]
    parts += components("objective", REGISTRY)
    parts += components("env", ENVIRONMENTS)
    parts += components("reward", VERIFIERS)
    for hook, registry in HOOKS.items():
        parts += components(f"control.{hook}", registry)
    return "\n".join(parts)


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The section type behind an annotation, if it is one."""
    for candidate in (annotation, *typing.get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def table(model: type[BaseModel], prefix: str) -> str:
    """One row per key."""
    rows = ["| key | type | default | what |", "| --- | --- | --- | --- |"]
    for name, field in model.model_fields.items():
        section = model_of(field.annotation)
        if section is not None and section is not Component:
            rows.append(f"| `{prefix}{name}` | section | | {cell(field.description)} |")
            continue
        default = field.default if field.default is not PydanticUndefined else None
        if field.default_factory is not None:
            default = field.default_factory()  # type: ignore[call-arg]
        shown = default.name if isinstance(default, Component) else default
        key = f"{prefix}{name}.name" if section is Component else f"{prefix}{name}"
        kind = "name" if section is Component else type_text(field.annotation, field.metadata)
        given = "required" if field.is_required() else f"`{shown}`"
        rows.append(f"| `{key}` | {cell(kind)} | {given} | {cell(field.description)} |")
    return "\n".join(rows) + "\n"


_REWARD = """### `reward`

Its options: `reward_options`; in a list of several, beside each `name`, with these:
"""


def components(kind: str, registry: Any) -> list[str]:
    """Each component of a kind with its options."""
    parts = [f"### `{kind}.name`\n" if kind != "reward" else _REWARD]
    if kind == "reward":
        parts.append(table(RewardFunction, "reward[]."))
    for name in registry.names():
        component = registry.find(name)
        parts.append(f"**`{name}`**: {cell(inspect.getdoc(component))}\n")
        if kind == "env":
            parts += [f"{cell(base.__doc__)}\n" for base in shared_options(component)]
        options = options_of(component)
        if options:
            hints = typing.get_type_hints(component)
            parts.append("| option | type | default |\n| --- | --- | --- |")
            for option, field in options.items():
                parts.append(f"| `{option}` | {cell(type_text(hints[option]))} | {default_of(field)} |")
            parts.append("")
    return parts


def shared_options(component: Any) -> list[type]:
    """The bases of a component that bring options of their own; their docstrings say what these do."""
    bases = inspect.getmro(component)[1:] if isinstance(component, type) else ()
    return [base for base in bases if dataclasses.is_dataclass(base) and vars(base).get("__annotations__")]


def default_of(field: dataclasses.Field[Any]) -> str:
    """The default as shown."""
    if field.default is not dataclasses.MISSING:
        return f"`{field.default}`"
    if field.default_factory is not dataclasses.MISSING:
        return f"`{field.default_factory()}`"
    return "required"


def paragraph(model: type[BaseModel]) -> str:
    """The docstring as one paragraph."""
    return cell(inspect.getdoc(model)) + "\n"


def cell(value: Any) -> str:
    """Text that fits into a table cell."""
    return " ".join(str(value or "").split()).replace("|", "\\|")


if __name__ == "__main__":
    main()
