"""Reading a configuration: a recipe's name or a TOML file, then ``key=value`` overrides, then validation.

Every problem is one ``ConfigError`` that names the key and, for an unknown one, the nearest known.
"""

from __future__ import annotations

import copy
import difflib
import os
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, get_args, get_origin

import tomli_w
from pydantic import BaseModel, ValidationError

from stretto.config.combinations import contradictions
from stretto.config.idle import check_idle, without_idle
from stretto.config.paths import anchor, names_object
from stretto.config.schema import RunConfig
from stretto.config.sections import Component
from stretto.config.simulation import LENGTHS, Distribution
from stretto.kernel.components import search, type_text
from stretto.kernel.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_QUOTES = """; texts in a list have quotes, and the whole has some for the shell: 'env.operators=["+", "-"]'"""
_ELSEWHERE = {
    "learning_rate": "learner.lr", "batch_size": "prompts_per_step", "num_generations": "group_size",
    "num_train_epochs": "epochs", "max_completion_length": "sampling.max_new_tokens", "beta1": "learner.betas",
    "lora_r": "learner.lora.rank", "lora_alpha": "learner.lora.alpha", "output_dir": "out", "dataset": "env.path",
    "loss": "objective.name", "algorithm": "objective.name", "staleness": "lag_bound", "off_policy": "lag_bound",
    "model_name_or_path": "model", "save_steps": "save_every", "eval_steps": "eval.every",
}  # fmt: skip
"""What other libraries call a key."""
_COMPONENTS = ("objective", "env", "control", "reward_options")


def recipe_names() -> list[str]:
    """Names of the recipes that come with Stretto."""
    files = resources.files("stretto").joinpath("recipes").iterdir()
    return sorted(path.name[:-5] for path in files if path.name.endswith(".toml"))


def read_source(source: str) -> dict[str, object]:
    """The table of a recipe (by name) or of a TOML file (by path)."""
    if source in recipe_names():
        text, where = resources.files("stretto").joinpath("recipes", f"{source}.toml").read_text(), f"recipe {source}"
    else:
        text, where = _read_file(source), source
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not valid TOML: {error}") from error
    except RecursionError:
        raise ConfigError(f"{where}: not valid TOML: nested too deeply") from None


def _read_file(source: str) -> str:
    try:
        if not Path(source).is_file():
            raise ConfigError(f"{source!r} is neither a file nor a recipe; {did_you_mean(source, recipe_names())}")
        return Path(source).read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not valid TOML: byte {error.start} is not UTF-8; save it as UTF-8") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{source!r} can't be read: {reason}") from error


def parse_override(text: str) -> tuple[list[str], object]:
    """``a.b=value`` as (["a", "b"], value); the value is TOML, and anything that isn't TOML is a string. A key that
    holds text takes it as it is, quoted or not (``name=2026``, ``out=runs/[a]``). ``null`` and ``none`` are None; but
    ``none`` is itself among a component's options, where it is a choice like any other."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not all(key.split(".")):
        raise ConfigError(f"override {text!r}: expected key=value without blanks, for instance learner.lr=1e-4")
    value = value.strip()
    if value and value[0] not in "\"'" and value not in ("none", "null") and _is_text(key.split(".")):
        return key.split("."), value
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        if value[:1] in ("[", "{", '"', "'"):
            hint = _QUOTES if value[0] == "[" else ""
            raise ConfigError(f"override {text!r}: the value is not valid TOML: {error}{hint}") from error
        parsed = {"none": None, "null": None, "True": True, "False": False}.get(value, value)
    path = key.split(".")
    if value == "none" and len(path) > 1 and path[0] in _COMPONENTS:
        parsed = value
    return path, parsed


def apply_overrides(table: dict[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """The table with the overrides put in. A new ``<component>.name`` drops the options of the old one."""
    for text in overrides:
        path, value = parse_override(text)
        here = table
        for part in path[:-1]:
            inner = here.setdefault(part, {})
            if isinstance(inner, str) and part in ("env", "objective"):
                inner = here[part] = {"name": inner}
            if not isinstance(inner, dict):
                raise ConfigError(f"override {text!r}: {part!r} is not a section")
            here = inner
        last = path[-1]
        if last == "name" and len(path) > 1 and here.get("name") not in (None, value):
            here.clear()
        if value is None:
            here.pop(last, None)
        else:
            here[last] = value
    return table


def load_config(source: str, overrides: Sequence[str] = (), mode: str | None = None) -> RunConfig:
    """Read, override, validate; ``ConfigError`` for what can't be or has no effect. ``mode``: the command that it is
    for (``train``, ``rehearse``, ``simulate``), under which other settings may be without effect."""
    table, given = read_source(source), apply_overrides({}, overrides)
    if found := list(contradictions(table, given)):
        raise ConfigError("\n".join(found))
    here = [Path.cwd()]
    places = here if source in recipe_names() else [Path(os.path.abspath(source)).parent, *here]
    anchor(table, places)
    both = apply_overrides(copy.deepcopy(table), overrides)
    anchor(both, here)
    if names_object(both):
        own = both.get("python_path", [])
        both["python_path"] = list(dict.fromkeys([*own, *map(str, places)])) if isinstance(own, list) else own
    config = validate(both)
    check_idle(table, _alone(table), given, config, mode)
    search(config.python_path)
    return config


RESUMABLE = (
    "max_steps", "epochs", "learner.lr", "learner.schedule", "learner.warmup_steps", "learner.final_lr_share",
    "deadlines", "logging", "save_every", "save_every_s", "keep_checkpoints", "eval", "workers", "accept_changed",
)  # fmt: skip
"""What may be set anew when a run goes on."""


def load_resumed(source: str, overrides: Sequence[str], mode: str | None, **own: object) -> RunConfig:
    """A run's saved configuration, with what is given to go on with it. ``own``: keys that it takes anew."""
    table, given = read_source(source), apply_overrides({}, overrides)
    config = validate(apply_overrides(table, overrides) | own)
    check_idle({}, None, given, config, mode)
    search(config.python_path)
    return config


def _alone(table: dict[str, object]) -> RunConfig | None:
    """The configuration that a file makes by itself, if it makes one."""
    try:
        return validate(copy.deepcopy(table))
    except ConfigError:
        return None


def validate(table: dict[str, object]) -> RunConfig:
    """A table as a ``RunConfig``; the first problem of each kind is one clear line."""
    _fill_defaults(table, RunConfig)
    try:
        return RunConfig.model_validate(table)
    except ValidationError as error:
        lines = [_explain(e, table) for e in error.errors()]
        raise ConfigError("\n".join(lines)) from error


def _fill_defaults(table: dict[str, object], model: type[BaseModel]) -> None:
    """Options given without their component's name belong to the default one; keys that a distribution leaves out
    keep the default of its place (which need not be that of its class)."""
    for key, field in model.model_fields.items():
        inner = table.get(key)
        if not isinstance(inner, dict):
            continue
        section = _model_of(field.annotation)
        if section is Component and field.default_factory is not None:
            inner.setdefault("name", field.default_factory().name)  # type: ignore[call-arg]
        elif section is Distribution:
            default = field.get_default(call_default_factory=True)
            for name, value in (LENGTHS if default is None else default).model_dump().items():
                inner.setdefault(name, value)
        elif section is not None:
            _fill_defaults(inner, section)


def _is_text(path: list[str]) -> bool:
    """Does this key hold text, whatever it looks like?"""
    section = _section(path[:-1])
    field = None if section is None or section is Component else section.model_fields.get(path[-1])
    return field is not None and field.annotation in (str, str | None)


def _explain(error: ErrorDetails, table: dict[str, object]) -> str:
    location = [str(part) for part in error["loc"]]
    key = ".".join(location)
    if error["type"] == "extra_forbidden":
        section = _section(location[:-1])
        known = list(section.model_fields) if section is not None else []
        where = f" in section {'.'.join(location[:-1])!r}" if len(location) > 1 else ""
        return f"unknown key {location[-1]!r}{where}; {_similar(location[-1], known)}"
    if not key:
        return str(error["msg"]).removeprefix("Value error, ")
    if error["type"] in ("model_type", "model_attributes_type"):
        section = _section(location)
        first = next(iter(section.model_fields)) if section is not None else "name"
        return f"{key} = {error['input']!r}: {key} is a section; give its keys, for instance {key}.{first}=..."
    if error["type"] == "value_error" and isinstance(error["input"], dict):  # of a whole section
        return f"{key}: {str(error['msg']).removeprefix('Value error, ')}"
    if error["type"].endswith(("_type", "_parsing")) and (expected := _expected(location)):
        return f"{key} = {error['input']!r}: expected {expected}"
    return f"{key} = {error['input']!r}: {str(error['msg']).removeprefix('Value error, ')}"


def _expected(location: list[str]) -> str | None:
    """What belongs here, as people say it."""
    section = _section(location[:-1])
    field = None if section is None else section.model_fields.get(location[-1])
    return None if field is None else type_text(field.annotation, field.metadata)


def _similar(name: str, known: list[str]) -> str:
    if name in _ELSEWHERE:
        return f"here it is {_ELSEWHERE[name]!r}"
    for path in _all_keys(RunConfig, ""):
        if path.rsplit(".", 1)[-1] == name and "." in path:
            return f"did you mean {path!r}?"
    close = difflib.get_close_matches(name, [*known, *_all_keys(RunConfig, "")], n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _all_keys(model: type[BaseModel], prefix: str) -> list[str]:
    keys = []
    for name, field in model.model_fields.items():
        keys.append(prefix + name)
        inner = _model_of(field.annotation)
        if inner is not None and inner is not Component:
            keys += _all_keys(inner, f"{prefix}{name}.")
    return keys


def _model_of(annotation: object) -> type[BaseModel] | None:
    for candidate in (annotation, *get_args(annotation)) if get_origin(annotation) else (annotation,):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _section(path: list[str]) -> type[BaseModel] | None:
    model: type[BaseModel] | None = RunConfig
    for part in path:
        if model is None or part not in model.model_fields:
            return None
        model = _model_of(model.model_fields[part].annotation)
    return model


def to_toml(config: RunConfig) -> str:
    """The resolved configuration as TOML; keys without effect are left out, and those whose value is None (TOML has no
    null)."""
    return tomli_w.dumps(without_idle(_without_none(config.model_dump(mode="json")), config))


def _without_none(table: dict[str, object]) -> dict[str, object]:
    return {key: _filled(value) for key, value in table.items() if value is not None}


def _filled(value: object) -> object:
    if isinstance(value, dict):
        return _without_none(value)
    return [_filled(entry) for entry in value] if isinstance(value, list) else value
