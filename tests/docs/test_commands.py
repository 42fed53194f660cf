"""Every command of README and docs: it is in the table of times, its options exist, its configuration is valid."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from blocks import DOCS

from stretto.cli.app import app
from stretto.config.load import load_config
from stretto.run.checks import check


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_commands", DOCS / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_commands"] = module
    spec.loader.exec_module(module)
    return module


SCRIPT = script()
COMMANDS = [command for page in SCRIPT.pages() for command in SCRIPT.commands(page)]
RUNS = [c for c in COMMANDS if c.words[:1] == ["stretto"]]


def test_every_command_is_in_the_table_of_times_and_nothing_else_is() -> None:
    assert len(RUNS) > 30
    assert {(c.page, c.text) for c in COMMANDS} == set(SCRIPT.table()), "python docs/commands.py --write"


def test_comments_and_joined_lines_are_read_as_a_shell_does(tmp_path: Path) -> None:
    page = SCRIPT.ROOT / "docs" / "tutorial.md"
    texts = [c.text for c in SCRIPT.commands(page)]
    assert any(t.startswith("stretto rehearse") and "simulation.env.mean=5" in t for t in texts)
    assert not any("#" in t for t in texts)


@pytest.mark.parametrize("command", RUNS, ids=lambda c: re.sub(r"\W+", "-", c.text)[:60])
def test_its_options_exist_and_what_it_starts_is_valid(command: object, tmp_path: Path) -> None:
    words = command.words[1:]  # type: ignore[attr-defined]
    group = typer.main.get_command(app)
    name, sub, rest = group.resolve_command(typer.Context(group), words)  # type: ignore[attr-defined]
    assert sub is not None, f"no such command: {name}"
    context = sub.make_context(name, list(rest))  # an unknown option or a missing argument raises
    if name not in ("train", "rehearse", "simulate") or context.params.get("resume") is not None:
        return
    page = SCRIPT.ROOT / command.page  # type: ignore[attr-defined]
    for file, text in SCRIPT.files(page).items():
        (tmp_path / file).write_text(text)
    source, overrides = context.params["source"], list(context.params["overrides"] or [])
    if (tmp_path / source).exists():
        source = str(tmp_path / source)
    if "my_method" in " ".join(words):
        return  # its own test follows that page to the letter
    config = load_config(source, overrides, name)
    if config.env.name != "data":  # the page's data comes with the page's text
        check(config, name)
