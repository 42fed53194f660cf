"""Experiments of several parts."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from stretto.kernel.errors import ConfigError
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.catalog import PAPERS, find
from stretto.papers.parts import together
from stretto.papers.run import save_figure


def test_parts_run_in_turn_and_keep_their_names(tmp_path: Any) -> None:
    def one(settings: Settings) -> Outcome:
        return Outcome([Check("slope", settings.first_seed, "", None, True)], ["it fell"],
                       lambda figure: figure.subplots().plot([1, 2]))  # fmt: skip

    def two(settings: Settings) -> Outcome:
        return Outcome([Check("slope", 1, "", None, False)], [], lambda figure: figure.subplots().plot([2, 1]))

    def three(settings: Settings) -> Outcome:
        return Outcome([Check("seen", 1)])

    said: list[str] = []
    outcome = together({"a": one, "b": two, "c": three}, Settings(first_seed=7, say=said.append))
    assert [c.name for c in outcome.checks] == ["a: slope", "b: slope", "c: seen"]
    assert outcome.notes == ["a: it fell"]
    assert not outcome.passed
    assert [line.split(",")[0] for line in said] == ["a: pass", "b: FAIL", "c: reported"]
    assert outcome.plot is not None
    assert save_figure(outcome.plot, tmp_path / "f.png").stat().st_size > 5000


@pytest.mark.parametrize("paper", [p for p in PAPERS if p.parts], ids=lambda p: p.name)
def test_the_list_names_the_parts_that_there_are(paper: Any) -> None:
    module = importlib.import_module(f"stretto.papers.{paper.module}")
    assert tuple(module.PARTS) == paper.parts
    for part in paper.parts:
        assert find(part).only == part
        assert find(part).title == paper.title


def test_an_unknown_part_is_told_its_neighbour() -> None:
    with pytest.raises(ConfigError, match="unknown paper 'td-rates'; did you mean 'td-rate'"):
        find("td-rates")


def test_an_effect_that_did_not_appear_is_said() -> None:
    words = [Check("a", 1, passed=p, absent=x).verdict for p, x in ((None, False), (None, True), (True, False))]
    assert words == ["reported", "not reproduced", "pass"]
