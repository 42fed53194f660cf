"""Mutants fit the source they were written for, and the page has them all."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from mutant import SOURCE, Mutant, all_mutants

import run
from stretto.papers import PAPERS

MUTANTS = all_mutants()
PARTS = {part: p for p in PAPERS if p.module for part in (p.parts or (p.name,))}


@pytest.mark.parametrize("mutant", MUTANTS, ids=[f"{m.part}: {m.name}" for m in MUTANTS])
def test_a_mutant_changes_one_place_and_compiles(mutant: Mutant, tmp_path: Path) -> None:
    path = tmp_path / mutant.file
    path.parent.mkdir(parents=True)
    shutil.copy(SOURCE / mutant.file, path)
    mutant.apply(tmp_path)
    compile(path.read_text(), str(path), "exec")
    assert mutant.part in PARTS
    assert mutant.new not in ("", mutant.old)


def test_a_mutant_of_something_else_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\nx = 1\n")
    with pytest.raises(ValueError, match="2 places in a"):
        Mutant("twice", "copc", "a.py", "x = 1", "x = 2").apply(tmp_path)


def test_no_two_are_called_alike() -> None:
    assert max(Counter((m.part, m.name) for m in MUTANTS).values(), default=1) == 1


def test_the_page_is_current() -> None:
    assert run.PAGE.read_text() == run.page(), "python tests/mutants/run.py --page"


def test_a_run_of_one_part_leaves_the_rows_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "DATA", tmp_path)
    mutant = Mutant("no restarts", "td-rate", "a.py", "x", "y")
    for part in ("td-rate", "td-moments"):
        run.keep({run.Job(part, None, seed, False): "pass" for seed in run.FIRST_SEEDS})
    run.keep({run.Job("td-rate", mutant, seed, False): f"FAIL (1: {seed})" for seed in run.FIRST_SEEDS})
    assert run.read("async-td") == {
        "td-rate": {"no restarts": ["FAIL (1: 0)", "FAIL (1: 100)"]}, "td-moments": {"nothing": ["pass", "pass"]}
    }  # fmt: skip
    assert "| td-moments | nothing | pass; pass |" in run.page()
