"""The house: imports point downwards only, modules stay small, the public surface is documented, docs are current."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "stretto"
ROOMS = (  # from the front door down; a module may import its own room and those below
    "cli", "recipes", "service", "papers", "sweep", "run", "observe", "runtime", "simulation", "control", "pool",
    "weights", "rollout", "envs", "learner", "models", "games", "tabular", "objectives", "config", "data", "kernel",
)  # fmt: skip
LIGHT = ("runtime.orchestrator", "control.hooks", "pool.pool", "envs.base", "envs.arithmetic", "observe.report",
         "observe.checker", "config.load", "data.trajectory", "run.launch")  # fmt: skip


FORMER = {
    "Feeder", "Trainer", "Parts", "Crew", "hatch", "Offer", "Stepped", "Segments", "Scored", "Promise", "Taken",
    "LateQueue", "SideBySide", "HeldVersions", "Costs", "Cluster", "Residency", "TrainMode", "Move", "partials",
    "give_up", "worked", "more_coming", "says", "remarks", "try_modules", "steps_per_advance", "top_logp", "mc_logp",
    "mc_ids", "mc_tokens", "head_logp", "head_ids", "head_tokens", "critic_lam", "warm_start", "WarmStart", "canary",
    "residency", "train_mode",
}  # fmt: skip
"""Our own words of once for what the field has names for: none of them comes back."""
WORDS = {"stretto.models.prefix": {"head_ids"}}
"""Where one of them means what it says."""


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "stretto"


def name_of(path: Path) -> str:
    parts = path.relative_to(SRC.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "stretto"}


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_downwards(path: Path) -> None:
    module = name_of(path)
    if module == "stretto":
        return
    own = ROOMS.index(room(module))
    for imported in imports(ast.parse(path.read_text())):
        if imported == "stretto" or room(imported) == room(module):
            continue
        assert ROOMS.index(room(imported)) > own, f"{module} imports {imported}, which lies above it"


def names_in(tree: ast.AST) -> set[str]:
    """Everything that code gives a name to."""
    found = {getattr(node, field, None) for node in ast.walk(tree) for field in ("name", "id", "attr", "arg")}
    return {name for name in found if isinstance(name, str)}


def test_names_are_the_fields() -> None:
    back = {name_of(path): names_in(ast.parse(path.read_text())) & FORMER for path in modules()}
    back = {module: names - WORDS.get(module, set()) for module, names in back.items()}
    assert not {module: names for module, names in back.items() if names}


def test_types_say_what_things_are() -> None:
    """``Any`` is for what nothing else can be said of: a user's own objects, what a file or another process tells."""
    lines = [path for path in modules() for line in path.read_text().splitlines() if re.search(r"\bAny\b", line)]
    most = max(set(lines), key=lines.count)
    assert len(lines) < 200, (
        f"{len(lines)} lines say Any, {lines.count(most)} of them in {name_of(most)}: say what it is"
    )


def test_every_module_has_a_room_and_tests_mirror_the_rooms() -> None:
    loose = [path.name for path in SRC.glob("*.py") if path.name != "__init__.py"]
    assert not loose, f"{loose}: give it a room"
    rooms = {path.name for path in SRC.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms <= {*ROOMS}
    tested = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}
    assert tested <= rooms | {"docs", "mutants"}, "tests/ mirrors src/stretto/"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_modules_stay_small(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 320, f"{path.relative_to(ROOT)} has {lines} lines: one reason per module, about 300 lines"


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_public_names_are_documented(path: Path) -> None:
    tree = ast.parse(path.read_text())
    if path.name != "__init__.py" or path.read_text().strip():
        assert ast.get_docstring(tree), f"{name_of(path)} has no docstring"
    missing = []
    for node in tree.body:
        public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_"
        if public and not ast.get_docstring(node):
            missing.append(node.name)
    assert not missing, f"{name_of(path)}: no docstring on {', '.join(missing)}"


def test_the_orchestrator_side_does_not_import_torch() -> None:
    code = f"""
import sys
for module in {LIGHT!r}:
    __import__('stretto.' + module)
print('torch' in sys.modules, 'transformers' in sys.modules)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False"]


def test_the_config_reference_is_current() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert (ROOT / "docs" / "config.md").read_text() == reference.text(), "run: python docs/reference.py"


def test_links_in_the_docs_resolve() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}, which doesn't exist"


def test_every_config_key_is_described() -> None:
    from stretto.config.schema import RunConfig

    def undescribed(model: type, prefix: str) -> list[str]:
        bad = []
        for name, field in model.model_fields.items():  # type: ignore[attr-defined]
            if not field.description:
                bad.append(prefix + name)
            if isinstance(field.annotation, type) and hasattr(field.annotation, "model_fields"):
                bad += undescribed(field.annotation, f"{prefix}{name}.")
        return bad

    assert undescribed(RunConfig, "") == []
