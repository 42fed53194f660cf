"""Where the files and modules are that a configuration names.

A path in a TOML file is meant from where the file lies (or, if nothing is there, from the working directory), one on
the command line from the working directory. Resolved, each is absolute, so that a run can be resumed from anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_PATH = re.compile(r"(.*_)?(path|file|dir|directory|template)")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_READY = ("tiny", "smollm2")


def anchor(table: dict[str, object], bases: Sequence[Path]) -> None:
    """Make ``model``, ``python_path`` and the environment's paths absolute: the first of ``bases`` where there is
    something. What is nowhere stays as it is."""
    if isinstance(model := table.get("model"), str) and model not in _READY:
        table["model"] = _found(model, bases)
    if isinstance(entries := table.get("python_path"), list):
        table["python_path"] = [_found(e, bases) if isinstance(e, str) else e for e in entries]
    env = table.get("env")
    if isinstance(env, dict):
        for key, value in env.items():
            if isinstance(value, str) and is_path(key):
                env[key] = _found(value, bases)


def is_path(key: str) -> bool:
    """Is an environment's option of this name a path?"""
    return _PATH.fullmatch(key) is not None


def _found(value: str, bases: Sequence[Path]) -> str:
    if "://" in value or value.startswith("stretto:") or "\0" in value:
        return value
    try:
        path = Path(value).expanduser()
        places = [path] if path.is_absolute() else [base / path for base in bases]
        return next((os.path.abspath(place) for place in places if place.exists()), value)
    except (OSError, RuntimeError):  # too long a name, no such user: who reads it says so
        return value


def names_object(table: dict[str, object]) -> bool:
    """Is there a reward, a component or an option ``module:name``?"""
    keys = ("reward", "rewards", "reward_options", "env", "objective", "control", "engine")
    named = (table.get(key) for key in keys)
    return any(_OBJECT.fullmatch(text) for part in named for text in _texts(part) if not text.startswith("stretto:"))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
