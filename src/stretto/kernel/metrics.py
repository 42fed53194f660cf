"""The metrics of a run: each name is declared once, by the module that computes it, with its unit and its meaning.

::

    OWN = declare(__name__, Metric(Section.TIME, "time/step", "s", "since the step before", healthy="level"), ...)

    def times(...) -> dict[str, float]:
        return OWN.checked({"time/step": window, ...})

A name that two modules declare, or that a module writes without having declared it, is an ``InvariantError``.
``docs/metrics.md`` is written from the declarations.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeVar

from stretto.kernel.errors import InvariantError

T = TypeVar("T")


class Section(Enum):
    """Where a reader looks for a metric."""

    ROW = "The row"
    REWARD = "Reward and evaluation"
    STALENESS = "Staleness"
    POLICY = "The policy against the data"
    LEARNER = "The learner"
    WORK = "Work"
    TIME = "Time"
    LATE = "Late rewards"
    METHOD = "Of single objectives"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, or several that one sentence explains.

    ``name``: several are separated by spaces, ``{a,b}`` stands for both, ``<...>`` for what a run fills in. ``what`` it
    is, in its ``unit``; what is ``healthy``, and what to do ``otherwise``. All of it is Markdown.
    """

    section: Section
    name: str
    unit: str
    what: str
    healthy: str = ""
    otherwise: str = ""

    @property
    def names(self) -> list[str]:
        """The names, with braces spelled out."""
        found: list[str] = []
        for name in self.name.split():
            parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]*\})", name)]
            found += map("".join, itertools.product(*parts))
        return found


class Declared:
    """The metrics that a module computes. ``module``: its dotted name."""

    def __init__(self, module: str, metrics: tuple[Metric, ...]) -> None:
        self.module, self.metrics = module, metrics

    @cached_property
    def names(self) -> frozenset[str]:
        """Every name, with braces spelled out; ``<...>`` stays."""
        return frozenset(name for metric in self.metrics for name in metric.names)

    @cached_property
    def _like(self) -> re.Pattern[str]:
        forms = (re.split(r"(<[^>]*>)", name) for name in self.names)
        return re.compile("|".join("".join(".+" if p[:1] == "<" else re.escape(p) for p in form) for form in forms))

    def __contains__(self, name: str) -> bool:
        return name in self.names or self._like.fullmatch(name) is not None

    def checked(self, row: dict[str, T]) -> dict[str, T]:
        """The row as it is; ``InvariantError`` if it has a name that this module doesn't declare."""
        if not row.keys() <= self.names and (strange := [name for name in row if name not in self]):
            raise InvariantError(f"{self.module} computes {', '.join(strange)}, which it doesn't declare as a metric")
        return row


_BY_MODULE: dict[str, Declared] = {}
_ALL: set[str] = set()


def declare(module: str, *metrics: Metric) -> Declared:
    """Say which metrics ``module`` (its ``__name__``) computes. ``InvariantError`` if a name has an owner."""
    owners = {name: own.module for own in _BY_MODULE.values() if own.module != module for name in own.names}
    for name in (name for metric in metrics for name in metric.names):
        if name in owners:
            raise InvariantError(f"metric {name} is declared by {owners[name]} and {module}: a name has one owner")
        owners[name] = module
    own = _BY_MODULE[module] = Declared(module, metrics)
    _ALL.update(own.names)
    return own


def declarations() -> list[Declared]:
    """What has been declared so far, by the modules that were imported."""
    return list(_BY_MODULE.values())


def undeclared(names: Iterable[str]) -> list[str]:
    """Those of the names that no imported module declares."""
    return [n for n in names if n not in _ALL and not any(n in own for own in _BY_MODULE.values())]


def joined(*parts: Mapping[str, T]) -> dict[str, T]:
    """The metrics of several owners as one row; ``InvariantError`` if a name comes twice."""
    row: dict[str, T] = {}
    for part in parts:
        if twice := row.keys() & part.keys():
            raise InvariantError(f"metric {min(twice)} is computed twice: a name has one owner")
        row.update(part)
    return row
