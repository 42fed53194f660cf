"""BRACE's experiment."""

from __future__ import annotations

import pytest

from stretto.papers import brace
from stretto.papers.base import Settings


def test_the_short_and_the_long_walk_behave_as_stated() -> None:
    outcome = brace.reproduce(Settings(quick=True))
    asked = {c.name: c for c in outcome.checks}
    assert outcome.passed, [c.name for c in outcome.checks if c.passed is False]
    early = asked["B: RMSE after 10 rounds"].measured
    for name, reference in brace.REFERENCE_EARLY.items():
        assert early[name] == pytest.approx(reference, rel=0.05), name
    assert asked["B: mean log product of the traces over the walk"].measured == pytest.approx(-3.2, abs=0.15)


@pytest.mark.slow
def test_the_conditions_hold_for_other_trajectories() -> None:
    assert brace.reproduce(Settings(first_seed=50)).passed
