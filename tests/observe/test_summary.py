"""The figures of a run: collapse."""

from __future__ import annotations

from stretto.observe.summary import Figures


def collapse(rewards: list[float]) -> int | None:
    figures = Figures()
    for k, reward in enumerate(rewards):
        figures.see({"step": k + 1, "reward/trained/mean": reward})
    at: int | None = figures.summary({})["collapse"]
    return at


def test_a_collapse_is_told_with_its_step_and_censored_when_there_was_none() -> None:
    assert collapse([0.2] * 10 + [0.8] * 30) is None
    assert collapse([0.2] * 10 + [0.8] * 30 + [0.1] * 30) in range(41, 51)
    assert collapse([]) is None
