"""What a user imports from ``stretto``: all of it is there, typed, and costs nothing until it is asked for."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import stretto


def test_each_public_name_is_what_its_module_defines() -> None:
    for name, home in stretto._HOME.items():
        found = getattr(stretto, name)
        assert found is getattr(importlib.import_module(f"stretto.{home}"), name)
        assert found.__module__ == f"stretto.{home}", f"stretto.{name} comes from {found.__module__}"
    assert list(stretto._HOME) == sorted(stretto._HOME)
    assert {*stretto.__all__} <= {*dir(stretto)}


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(stretto.__file__)).read_text())
    typed = {
        alias.asname: str(node.module).removeprefix("stretto.")
        for block in tree.body if isinstance(block, ast.If)
        for node in block.body if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }  # fmt: skip
    assert typed == stretto._HOME


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Trainer'"):
        stretto.Trainer  # noqa: B018


def test_import_stretto_loads_nothing_else() -> None:
    code = "import sys, stretto; print(sorted(m for m in sys.modules if m.partition('.')[0] in ('numpy', 'torch')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
