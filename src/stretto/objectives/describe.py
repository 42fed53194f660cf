"""What ``stretto objectives`` prints: formula, source, options and gradient table of a method, read from the code."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from dataclasses import dataclass

from stretto.kernel.components import type_text
from stretto.objectives.registry import REGISTRY
from stretto.objectives.table import GradientRow, example, gradient_table

WHEN = """\
An objective decides how much each sampled token counts when the policy that
sampled it has changed since. Choose one with objective.name=NAME, and see what
it does, with its options, by: stretto objectives NAME

when to use which
  data at most a few versions old   tis (the default), grpo, icepop, cispo
  old data (8 versions and more)    topr, gspo[reference=behavior]: they held at
                                    lag 64; tis collapsed (docs/comparing.md)
  lag_bound = 0, no correction      grpo, dr-grpo, rloo, reinforce
  a critic (learner.critic.kind)    ppo, vtrace, brace, copc, sao
  rewards that come late            rac
measure on your task: stretto compare RECIPE --objectives tis,topr --lag 0,8
"""
NEEDS = """\
needs: what a run provides by itself, at the cost that stands there
  values      a critic: set learner.critic.kind to head or network
  proximal    log-probabilities at the step's start, for the loss
  start       the same for advantages and targets: an extra forward pass
  gate        the same for advantages, which leave out rejected rows
  statistics  sums over the whole step: an extra forward pass if it is split
  old         log-probabilities of an old policy (learner.old_policy)
  sampled     further independent samples at each token, by the engine
  top         log-probabilities of the likeliest tokens, by the engine
  late        an environment whose rewards come after their trajectory"""


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
    objective = example(name)
    kind = type(objective)
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


def prose(text: str) -> str:
    """A docstring for a terminal: paragraphs on one line each (it wraps them), formulas and lists as they stand,
    without the marks of code.

    >>> print(prose("One ``x`` and\\ntwo.\\n\\n    x = 1\\n    y = 2"))
    One x and two.
    <BLANKLINE>
        x = 1
        y = 2
    """
    out: list[str] = []
    joins = False
    for line in text.replace("``", "").splitlines():
        plain = bool(line.strip()) and not line.startswith((" ", "* ", "- ", "|", "=", "+"))
        goes_on = line.startswith("  ") and bool(out) and out[-1].startswith(("* ", "- "))
        if (plain and joins) or goes_on:
            out[-1] += f" {line.strip()}"
        else:
            out.append(line.rstrip())
        joins = plain or (joins and goes_on)
    return "\n".join(out)


def _summary(name: str) -> Summary:
    text = inspect.getdoc(REGISTRY.find(name)) or ""
    return Summary(name, " ".join(text.split("\n\n")[0].split()), sorted(example(name).needs))


def _default(field: dataclasses.Field[object]) -> str:
    return "required" if field.default is dataclasses.MISSING else repr(field.default)
