"""The figures of a run: collapse."""

from __future__ import annotations

from stretto.observe.interval import Interval
from stretto.observe.summary import summary_of


def summary(rewards: list[float]) -> int | None:
    rows = [{"step": k + 1, "reward/trained/mean": r} for k, r in enumerate(rewards)]
    at: int | None = summary_of(Interval(), rows, {})["collapse"]
    return at


def test_a_collapse_is_told_with_its_step_and_censored_when_there_was_none() -> None:
    assert summary([0.2] * 10 + [0.8] * 30) is None
    assert summary([0.2] * 10 + [0.8] * 30 + [0.1] * 30) in range(41, 51)
    assert summary([]) is None
