"""Is an event what its type says?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from stretto.kernel.errors import did_you_mean
from stretto.kernel.event_types import TYPES


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an event: its type, whether every event of the name has it, what it is ("" where its name says it)."""

    name: str
    type: object
    required: bool
    what: str


@cache
def fields_of(kind: type) -> tuple[Field, ...]:
    """The fields of a type of events, ``e`` and ``t`` apart, in the order in which they are declared."""
    out = []
    for name, hint in get_type_hints(kind, include_extras=True).items():
        if name in ("e", "t"):
            continue
        what, required = "", True
        while (origin := get_origin(hint)) in (Annotated, NotRequired):
            what = get_args(hint)[1] if origin is Annotated else what
            required = required and origin is not NotRequired
            hint = get_args(hint)[0]
        out.append(Field(name, hint, required, what))
    return tuple(out)


def event_faults(event: Mapping[str, object]) -> list[str]:
    """What is wrong with the shape of an event, as sentences: its name, missing or unknown fields, wrong types."""
    name = event.get("e")
    kind = TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        return [f"no event is called {name!r}; {did_you_mean(str(name), TYPES)}"]
    if not _fits(event.get("t"), float):
        return [f"{name}: t is {event.get('t')!r}, not seconds on the run's clock"]
    fields = {field.name: field for field in fields_of(kind)}
    found = [f"{name} has no {field.name}" for field in fields.values() if field.required and field.name not in event]
    for key, value in event.items():
        if key in ("e", "t"):
            continue
        if key not in fields:
            found.append(f"{name}: unknown field {key!r}; {did_you_mean(key, fields)}")
        elif not _fits(value, fields[key].type):
            found.append(f"{name}: {key} is {value!r}, not {say(fields[key].type)}")
    return found


def _fits(value: object, hint: object) -> bool:
    """Is this a value of that type, as JSON gives it?"""
    if is_typeddict(hint):
        assert isinstance(hint, type)
        return isinstance(value, dict) and all(
            _fits(value[f.name], f.type) if f.name in value else not f.required for f in fields_of(hint)
        )
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return value in inner
    if origin is list:
        return isinstance(value, list) and all(_fits(each, inner[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    if hint is NoneType:
        return value is None
    if hint is bool:
        return isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    assert isinstance(hint, type), hint
    if issubclass(hint, StrEnum):
        return value in tuple(hint)
    return isinstance(value, hint) and not isinstance(value, bool)


def say(hint: object) -> str:
    """A type in words: ``number``, ``[whole number, ...]``, ``text or null``."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(say(each) for each in inner)
    if origin is list:
        return f"[{say(inner[0])}, ...]"
    if origin is dict:
        return f"{{name: {say(inner[1])}}}"
    if is_typeddict(hint):
        assert isinstance(hint, type)
        return "{" + ", ".join(f.name for f in fields_of(hint)) + "}"
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return " or ".join(hint)
    words = {int: "whole number", float: "number", str: "text", bool: "true or false", NoneType: "null"}
    return words[hint]  # type: ignore[index]
