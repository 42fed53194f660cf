"""Compiled loops leave PyTorch's threads alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src" / "stretto"
CODE = """
import torch
torch.set_num_threads(1)
torch.get_num_threads()  # PyTorch settles its threads at the first question
{run}
print(torch.get_num_threads())
"""
MINI = """
from stretto.games.foraging.mini import mini
from stretto.games.foraging.mini_loop import climb
climb(mini(), range(4), [10])
"""


def _threads(run: str) -> str:
    done = subprocess.run([sys.executable, "-c", CODE.format(run=run)], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_torch_keeps_the_threads_that_it_was_given() -> None:
    assert _threads(MINI) == "1"


def _parallel() -> list[Path]:
    return [p for p in SRC.rglob("*.py") if re.search(r"parallel=True|ThreadPoolExecutor\(", p.read_text())]


def test_there_are_parallel_loops() -> None:
    assert len(_parallel()) >= 9


@pytest.mark.parametrize("path", _parallel(), ids=lambda p: p.relative_to(SRC).as_posix())
def test_whoever_runs_them_starts_the_threads(path: Path) -> None:
    """In the same file, or, where the loops are a file of their own, beside it."""
    if "tabular" in path.parts or "games" in path.parts:
        near = [path, path.with_name("learn.py"), path.with_name("learning.py")]
        assert any(p.exists() and "start_threads()" in p.read_text() for p in near)
