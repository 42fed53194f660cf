"""Named components with typed options: objectives, control rules, environments, rewards.

A component is a dataclass whose fields are its options. ``Registry`` finds it by name (or by
``module:Class``), refuses unknown options with the nearest known one, and checks the types of the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import importlib
import inspect
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from stretto.kernel.containment import unchanged
from stretto.kernel.errors import ConfigError, did_you_mean, is_users

T_co = TypeVar("T_co", covariant=True)
C = TypeVar("C", bound=Callable[..., object])


def load_object(path: str, where: str) -> Any:
    """Import ``module:attribute``; ``where`` names the setting in the error. Whatever the module raises becomes a
    ``ConfigError`` with the line that raised it."""
    module_name, attribute = split_path(path, where)
    if module_name.endswith(".py") or "/" in module_name:
        plain = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise ConfigError(f"{where} = {path!r}: a module's name, not its file's: {plain}:{attribute}")
    try:
        with contextlib.nullcontext() if module_name in sys.modules else unchanged(module_name):
            module = importlib.import_module(module_name)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        raise ConfigError(f"{where} = {path!r}: can't import {module_name!r}: {said_where(error)}") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = [name for name in vars(module) if not name.startswith("_")]
        close = difflib.get_close_matches(attribute, public, n=5)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ", nor a similar name"
        raise ConfigError(f"{where} = {path!r}: {module_name!r} has no {attribute!r}{hint}") from None


def search(directories: Sequence[str]) -> None:
    """Look for modules in these directories, too, here and in the processes that are started from here."""
    known = os.environ.get("PYTHONPATH", "")
    for directory in directories:
        if directory not in sys.path:
            sys.path.append(directory)
        if directory not in known.split(os.pathsep):
            known = f"{known}{os.pathsep}{directory}" if known else directory
    if directories:
        os.environ["PYTHONPATH"] = known


def split_path(path: str, where: str) -> tuple[str, str]:
    """The module and the attribute of ``module:attribute``."""
    module, _, attribute = path.partition(":")
    if not module or not attribute:
        raise ConfigError(f"{where} = {path!r}: expected 'module:name'")
    return module, attribute


def said_where(error: BaseException) -> str:
    """What was raised, and the file and line that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}:{error.lineno})"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    if not frames or frames[-1].filename == importlib.__file__:  # no line of a module that is imported ran
        return str(error)
    last = next((f for f in reversed(frames) if is_users(f.filename)), frames[-1])
    return f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"


def options_of(component: object) -> dict[str, dataclasses.Field[object]]:
    """The option fields of a component class, by name."""
    if not dataclasses.is_dataclass(component):
        return {}
    return {field.name: field for field in dataclasses.fields(component) if field.init}


_WORDS: dict[object, str] = {int: "whole number", float: "number", bool: "true or false", str: "text",
                          type(None): "nothing", Any: "anything"}  # fmt: skip
_MANY: dict[object, str] = {int: "whole numbers", float: "numbers", str: "texts"}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def type_text(annotation: object, metadata: Sequence[object] = ()) -> str:
    """A type as people write it: ``whole number, at least 0``, ``text or nothing``, ``list of texts``. ``metadata``:
    the bounds of a pydantic field."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        more = [bound for item in inner[1:] for bound in getattr(item, "metadata", [item])]
        return type_text(inner[0], [*more, *metadata])
    if origin is typing.Literal:
        return " or ".join(f"`{choice}`" for choice in inner)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return " or ".join(f"`{choice}`" for choice in annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [type_text(part, metadata if part is not type(None) else ()) for part in inner]
        return " or ".join(parts)
    if origin in (list, tuple):
        kind = inner[0] if inner else Any
        if typing.get_origin(kind) is typing.Annotated:
            return f"{_count(origin, inner)} {type_text(kind).replace('number', 'numbers', 1)}, each"
        return (
            f"{_count(origin, inner)} {'tables' if hasattr(kind, 'model_fields') else _MANY.get(kind, type_text(kind))}"
        )
    if origin is dict or annotation is dict or hasattr(annotation, "model_fields"):
        return "table"
    said = [f"{word} {getattr(item, name):g}" for item in metadata for name, word in _BOUNDS.items()
            if getattr(item, name, None) is not None and abs(getattr(item, name)) < 1 << 30]  # fmt: skip
    word: str = _WORDS.get(annotation) or getattr(annotation, "__name__", None) or str(annotation)
    return ", ".join([word, " and ".join(said)]) if said else word


def _count(origin: object, inner: tuple[object, ...]) -> str:
    if origin is list or Ellipsis in inner:
        return "list of"
    return {2: "two", 3: "three"}.get(len(inner), str(len(inner)))


class Registry(Generic[T_co]):
    """Components of one kind, by name. ``modules`` are imported on first use, so that start-up stays light."""

    def __init__(self, kind: str, modules: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self._modules = modules
        self._entries: dict[str, Callable[..., T_co]] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator: make the component known under ``name``."""

        def add(component: C) -> C:
            if name in self._entries:
                raise ConfigError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = component  # type: ignore[assignment]  # the decorator stands on classes of that kind
            component.component_name = name  # type: ignore[attr-defined]
            return component

        return add

    def _load(self) -> None:
        for module in self._modules:
            importlib.import_module(module)

    def names(self) -> list[str]:
        """All known names, sorted."""
        self._load()
        return sorted(self._entries)

    def find(self, name: str, where: str | None = None) -> Callable[..., T_co]:
        """The component called ``name``, or the object at ``module:Class``."""
        self._load()
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return load_object(name, where or self.kind)
        raise ConfigError(f"unknown {self.kind} {name!r}; {did_you_mean(name, self._entries)}")

    def build(self, name: str, options: Mapping[str, object], where: str | None = None) -> T_co:
        """Construct the component after checking each option's name and type."""
        component = self.find(name, where)
        return component(**check_options(component, options, where or f"{self.kind} {name!r}"))


def check_options(component: Callable[..., object], options: Mapping[str, object], where: str) -> dict[str, object]:
    """Validated copy of ``options``; unknown names and wrong types raise ``ConfigError``."""
    known = options_of(component)
    if not known:  # a plain class or function: its own signature decides
        try:
            inspect.signature(component).bind(**options)
        except TypeError as error:
            raise ConfigError(f"{where}: {error}") from error
        return dict(options)
    adapters = _adapters(component)
    checked: dict[str, object] = {}
    for name, value in _unaliased(component, options, where).items():
        if name not in known:
            raise ConfigError(f"{where}: unknown option {name!r}; {did_you_mean(name, known)}")
        try:
            checked[name] = _validated(adapters[name], value)
        except ValidationError as error:
            detail = error.errors()[0]["msg"]
            raise ConfigError(f"{where}.{name} = {value!r}: {detail}") from error
    missing = [
        name
        for name, field in known.items()
        if name not in checked and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        names = ", ".join(missing)
        raise ConfigError(f"{where}: missing option {names}, which has no default: give it a value")
    return checked


def _validated(kind: TypeAdapter[object], value: object) -> object:
    """``value`` checked; ``"none"`` is None where it isn't a choice of its own (TOML has no null)."""
    try:
        if isinstance(value, bool):  # ``value_clip = true`` is no clip of 1
            return kind.validate_python(value, strict=True)
        return kind.validate_python(value)
    except ValidationError:
        if value != "none":
            raise
        with contextlib.suppress(ValidationError):
            return kind.validate_python(None)
        raise


def _unaliased(component: object, options: Mapping[str, object], where: str) -> dict[str, object]:
    """``options`` with the symbols of formulas (a component's ``aliases``) replaced by the options they stand for."""
    aliases: Mapping[str, tuple[str, ...]] = getattr(component, "aliases", {})
    out: dict[str, object] = {}
    for name, value in options.items():
        for target in aliases.get(name, (name,)) if name not in options_of(component) else (name,):
            if target in out:
                raise ConfigError(f"{where}: {name!r} sets {target!r}, which is set already")
            out[target] = value
    return out


@functools.cache
def _adapters(component: Callable[..., object]) -> dict[str, TypeAdapter[object]]:
    """What checks each option; kept, since making one takes a millisecond."""
    known = options_of(component)
    return {name: TypeAdapter(kind) for name, kind in typing.get_type_hints(component).items() if name in known}
