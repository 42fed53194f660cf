"""Each metric is declared once, by the module that computes it; ``docs/metrics.md`` is what is declared."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from stretto.kernel import metrics
from stretto.kernel.errors import InvariantError
from stretto.kernel.metrics import Declared, Metric, Section, declare, joined, undeclared

ROOT = Path(__file__).parents[2]
ROOMS = ("observe", "learner", "objectives", "runtime")


@cache
def page() -> ModuleType:
    """``docs/metrics.py``, which imports every module that declares metrics."""
    spec = importlib.util.spec_from_file_location("metrics_page", ROOT / "docs" / "metrics.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def producers() -> list[Declared]:
    found: list[Declared] = page().producers()
    return found


def text_of(node: ast.expr | None) -> str | None:
    """A string as a pattern: ``*`` where it is filled in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    texts = [part.value if isinstance(part, ast.Constant) else "*" for part in parts]
    return "".join(map(str, texts)) if isinstance(node, ast.JoinedStr) or isinstance(texts[0], str) else None


def literals(tree: ast.AST) -> set[str]:
    """Strings of a module, those of its declarations apart."""
    told = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            and node.func.id == "Metric" for inner in ast.walk(node)}  # fmt: skip
    return {text for node in ast.walk(tree) if isinstance(node, ast.expr) and id(node) not in told
            and (text := text_of(node)) is not None}  # fmt: skip


def computed(tree: ast.AST) -> set[str]:
    """The names that a module gives to numbers: ``row[name] = ...``, ``{name: ...}``, ``share(name, ...)``."""
    keys: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                several = target.elts if isinstance(target, ast.Tuple) else [target]
                keys += [each.slice for each in several if isinstance(each, ast.Subscript)]
        elif isinstance(node, ast.Dict):
            keys += node.keys
        elif isinstance(node, ast.DictComp):
            keys.append(node.key)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            keys += node.args[:1] if node.func.attr in ("share", "moment") else []
    return {text for text in map(text_of, keys) if text is not None and re.fullmatch(r"[a-z_*]+(/[a-z_0-9*@]+)+", text)}


def like(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*") + "(/mean|/std|/max)?")


def test_the_page_is_current() -> None:
    assert (ROOT / "docs/metrics.md").read_text() == page().text(), "run: python docs/metrics.py"


def test_every_declared_name_is_computed_where_it_is_declared() -> None:
    idle = []
    for own in producers():
        source = Path(str(sys.modules[own.module].__file__)).read_text()
        forms = [like(text) for text in literals(ast.parse(source))]
        idle += [f"{own.module}: {name}" for name in own.names if not any(
            form.fullmatch(re.sub("<[^>]*>", "x", name)) for form in forms)]  # fmt: skip
    assert not idle, f"declared, but not computed there: {idle}"


def test_every_name_is_declared_by_the_module_that_computes_it() -> None:
    owners = {own.module: own for own in producers()}
    strange = []
    for path in (path for room in ROOMS for path in sorted((ROOT / "src/stretto" / room).rglob("*.py"))):
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        own = owners.get(module)
        for text in computed(ast.parse(path.read_text())):
            names = () if own is None else own.names
            if not any(like(text).fullmatch(re.sub("<[^>]*>", "x", name)) for name in names):
                strange.append(f"{module}: {text}")
    assert not strange, f"computed, but not declared there: {strange}"


def test_every_metric_says_what_it_is() -> None:
    told = [metric for own in producers() for metric in own.metrics]
    assert len(told) > 60
    assert all(metric.what and metric.names for metric in told)
    exact = {name for metric in told if metric.healthy.startswith("**exact**") for name in metric.names}
    assert exact >= {"staleness/max", "ledger/submitted", "late/promised"}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is declared, and what the test declares is forgotten."""
    monkeypatch.setattr(metrics, "_BY_MODULE", {})
    monkeypatch.setattr(metrics, "_ALL", set())


@pytest.mark.usefixtures("alone")
def test_a_name_has_one_owner() -> None:
    declare("one", Metric(Section.WORK, "a/{b,c} d", "s", "what"))
    with pytest.raises(InvariantError, match="a/c is declared by one and two"):
        declare("two", Metric(Section.WORK, "a/c", "s", "what"))
    with pytest.raises(InvariantError, match="e is declared by three and three"):
        declare("three", Metric(Section.WORK, "e e", "s", "what"))
    assert undeclared(["a/b", "a/c", "d", "e", "a"]) == ["e", "a"]
    declare("one", Metric(Section.WORK, "a/c", "s", "a module that is imported once more"))


@pytest.mark.usefixtures("alone")
def test_an_undeclared_name_is_an_error_where_it_is_computed() -> None:
    own = declare("one", Metric(Section.WORK, "a/<x>/b c@<y>", "s", "what"), Metric(Section.WORK, "d", "", "what"))
    row = {"a/anything/b": 1.0, "c@4-7": 2.0, "d": 3.0}
    assert own.checked(row) is row
    for name in ("a//b", "c", "e"):
        with pytest.raises(InvariantError, match=f"one computes {name}"):
            own.checked({"d": 1.0, name: 1.0})
    assert joined(row, {"e": 1.0}) == {**row, "e": 1.0}
    with pytest.raises(InvariantError, match="d is computed twice"):
        joined(row, {"d": 4.0})
