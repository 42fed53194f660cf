"""What ``stretto objectives`` prints: formula, source, options and gradient table of a method, read from the code."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from dataclasses import dataclass
from typing import Any

from stretto.components import type_text
from stretto.objectives.registry import REGISTRY
from stretto.objectives.table import GradientRow, example, gradient_table


@dataclass(frozen=True)
class Summary:
    """One line about an objective."""

    name: str
    summary: str
    needs: list[str]


@dataclass(frozen=True)
class Option:
    """An option: ``symbols`` are the formula's names for it."""

    name: str
    type: str
    default: str
    symbols: list[str]


@dataclass(frozen=True)
class Description:
    """All about an objective; ``text`` holds formula and source."""

    name: str
    module: str
    text: str
    needs: list[str]
    options: list[Option]
    gradient: list[GradientRow]


def summaries() -> list[Summary]:
    """All objectives, sorted by name."""
    return [_summary(name) for name in REGISTRY.names()]


def describe(name: str) -> Description:
    """The objective called ``name``; ``ConfigError`` on an unknown one."""
    kind: Any = REGISTRY.find(name)
    objective = example(name)
    types = typing.get_type_hints(kind)
    symbols: dict[str, list[str]] = {}
    for symbol, targets in kind.aliases.items():
        for target in targets:
            symbols.setdefault(target, []).append(symbol)
    options = [
        Option(field.name, type_text(types[field.name]), _default(field), symbols.get(field.name, []))
        for field in dataclasses.fields(kind)
    ]
    return Description(
        name, kind.__module__, inspect.getdoc(kind) or "", sorted(objective.needs), options, gradient_table(objective)
    )


def _summary(name: str) -> Summary:
    text = inspect.getdoc(REGISTRY.find(name)) or ""
    return Summary(name, " ".join(text.split("\n\n")[0].split()), sorted(example(name).needs))


def _default(field: dataclasses.Field[Any]) -> str:
    return "required" if field.default is dataclasses.MISSING else repr(field.default)
