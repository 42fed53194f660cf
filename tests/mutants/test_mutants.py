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


def test_a_verdict_is_kept_beside_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "DATA", tmp_path)
    mutant = Mutant("no restarts", "td-rate", "a.py", "x", "y")
    honest, broken = run.Job("td-moments", None, 100), run.Job("td-rate", mutant, 0)
    assert run.known(honest) is None
    run.keep(honest, "pass")
    run.keep(broken, "FAIL (1: slope)")
    assert run.read("async-td") == {"td-moments": {"nothing": {"100": "pass"}},
                                    "td-rate": {"no restarts": {"0": "FAIL (1: slope)"}}}  # fmt: skip
    assert run.known(honest) == "pass"
    assert "| td-moments | nothing | not run yet; pass |" in run.page()


def test_a_mutant_that_lives_is_wrong_and_so_is_an_honest_run_that_fails() -> None:
    mutant = Mutant("no restarts", "td-rate", "a.py", "x", "y")
    for said, honest, broken in (("pass", False, True), ("reported", False, True), ("FAIL (1: a)", True, False),
                                 ("no verdict: killed", True, True)):  # fmt: skip
        assert run.is_wrong(run.Job("td-rate", None, 0), said) is honest
        assert run.is_wrong(run.Job("td-rate", mutant, 0), said) is broken
