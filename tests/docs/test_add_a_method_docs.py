"""``docs/add-a-method.md``, followed to the letter in an empty folder and in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import DOCS, blocks

from stretto.kernel.events import read_events

PAGE = "add-a-method.md"
ROOT = DOCS.parent


def shell(text: str, folder: Path, **environment: str) -> str:
    """What a shell says that stops at the first failure; the test's Python and its ``stretto`` come first."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120", **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_files(folder: Path) -> None:
    """The page's files, each named by its first line."""
    written = []
    for block in blocks(PAGE, "python"):
        name = block.text.split("\n", 1)[0].removeprefix("# ")
        (folder / name).write_text(block.text)
        written.append(name)
    assert written == ["my_method.py", "test_my_method.py"]


@pytest.mark.slow
def test_the_page_works_as_a_reader_would_type_it(tmp_path: Path) -> None:
    write_files(tmp_path)
    text = "\n".join(block.text for block in blocks(PAGE, "bash"))
    looked, rest = text.split("python -m pytest", 1)
    table = shell(looked, tmp_path)
    numbers = [line.split()[3:] for line in table.splitlines() if re.match(r"\s+A [<>] 0", line)]
    assert [[float(x) for x in row] for row in numbers] == [pytest.approx([0.18, 0.95, 1, 1.05, 1.8], rel=0.02)] * 2
    said = shell("python -m pytest" + rest, tmp_path, PYTHONPATH=".")
    assert "4 passed" in said
    assert sum(event["e"] == "StepEnd" for event in read_events(tmp_path / "runs/mine")) == 20
    assert 'name = "my_method:SmoothTIS"' in (tmp_path / "runs/mine/config.toml").read_text()


def test_the_comparison_that_it_suggests_is_one(tmp_path: Path) -> None:
    write_files(tmp_path)
    arms = re.findall(r"^stretto compare stale --objectives (\S+) ", (DOCS / PAGE).read_text(), re.MULTILINE)
    assert len(arms) == 1
    code = f"from stretto.sweep.arms import parse_arms; print([a.settings('none')[0] for a in parse_arms({arms[0]!r})])"
    said = shell(f'python -c "{code}"', tmp_path, PYTHONPATH=".")
    assert "objective.name=my_method:SmoothTIS" in said


@pytest.mark.slow
def test_contributing_takes_one_file_one_test_and_one_line(tmp_path: Path) -> None:
    for name in ("src", "tests/objectives"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    write_files(tmp_path)
    package = str(tmp_path / "src")
    before = (tmp_path / "src/stretto/objectives/registry.py").read_text().splitlines()
    moved, tested = (block.text for block in blocks(PAGE, "bash", "checkout"))
    shell(moved, tmp_path, PYTHONPATH=package)
    after = (tmp_path / "src/stretto/objectives/registry.py").read_text().splitlines()
    assert [line for line in after if line not in before] == ['    "smooth_tis",']
    assert len(after) == len(before) + 1
    assert "passed" in shell(tested.replace("-q", "-v"), tmp_path, PYTHONPATH=package)
