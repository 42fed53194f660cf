"""``docs/papers.md`` is what its data says, and the data is what the experiments' figures look like."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from stretto.papers import PAPERS, Check, Outcome
from stretto.papers.catalog import LANGUAGE
from stretto.papers.run import Verdict

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("papers_page", DOCS / "papers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current(script: ModuleType) -> None:
    assert (DOCS / "papers.md").read_text() == script.page(DOCS / "papers"), "run: python docs/papers.py --page"


def test_every_reproducible_paper_has_its_data_and_figure() -> None:
    for paper in PAPERS:
        if paper.module is not None:
            kept = json.loads((DOCS / "papers" / f"{paper.name}.json").read_text())
            assert (DOCS / "papers" / kept["figure"]).exists()
            assert kept["checks"]


def test_data_and_page_of_a_verdict(script: ModuleType, tmp_path: Path) -> None:
    checks = [
        Check("a", [1 / 3, float("nan")], "below 1", 0.25, True, paper=0.3, where="table 2"),
        Check("effect", {"x": 2}, "there", absent=True),
        Check("more", "words"),
    ]
    verdict = Verdict(PAPERS[0], Outcome(checks, ["a note"]), 1.5, None)
    (tmp_path / f"{PAPERS[0].name}.json").write_text(script.data(verdict))
    kept = json.loads(script.data(verdict))
    assert kept["checks"][0] == {
        "name": "a", "paper": 0.3, "where": "table 2", "reference": 0.25, "here": [0.3333, "nan"],
        "condition": "below 1", "verdict": "pass",
    }  # fmt: skip
    assert kept["verdict"] == "pass, 1 not reproduced"
    assert {"seeds", "versions", "notes"} <= kept.keys()
    page = script.page(tmp_path)
    assert "3 figures: 1 pass, 1 not reproduced, 1 reported ([copc.json]" in page
    assert "* not reproduced: effect (there)\n* a note" in page
    assert "words" not in page


def test_the_page_is_short_enough_to_read() -> None:
    assert len((DOCS / "papers.md").read_text().split()) < 6000


def test_experiments_with_a_language_model_have_a_row_a_claim(script: ModuleType, tmp_path: Path) -> None:
    experiment = LANGUAGE[0]
    here = {"final": [0.25, 0.1, 0.4], "area": [0.1, -0.1, 0.3]}
    checks = [
        Check("lag 8, lr 0.002: runs of c that end below half of their start", "5 of 5", "most", passed=True),
        Check("lag 8, lr 0.002: a wins against b", here),
        Check("lag 32, lr 0.002: a ties against b", here, absent=True),
        Check("lag 8, lr 0.002: a loses against c", here, absent=True),
    ]
    verdict = Verdict(experiment, Outcome(checks, ["a note", "a beats b at lag 8."]), 60.4, "x/a.png")
    (tmp_path / f"{experiment.name}.json").write_text(script.data(verdict))
    page = script.language(tmp_path)
    data = f"[{experiment.name}](papers/{experiment.name}.json)"
    cells = "8/0.002: +0.25, +0.10 | 32/0.002: +0.25, +0.10 |"
    assert f"| {data} | a against b | {cells}  | 60 |" in page
    assert f"| {data} | a against c |  |  | 8/0.002: +0.25, +0.10 | 60 |" in page
    assert "* a beats b at lag 8.\n" in page
    assert page.count("| not run yet |") == len(LANGUAGE) - 1
