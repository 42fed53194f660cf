"""Experiments of several parts."""

from __future__ import annotations

from typing import Any

from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.parts import together
from stretto.papers.run import draw


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
    assert outcome.draw is not None
    assert draw(outcome.draw, tmp_path / "f.png").stat().st_size > 5000
