"""SAO's experiment."""

from __future__ import annotations

import pytest

from stretto.papers import sao
from stretto.papers.base import Settings


@pytest.mark.slow
def test_the_conditions_hold_in_the_quick_form() -> None:
    outcome = sao.reproduce(Settings(quick=True))
    assert outcome.passed, [c.name for c in outcome.checks if c.passed is False]


@pytest.mark.slow
def test_the_conditions_hold_for_other_seeds() -> None:
    assert sao.reproduce(Settings(first_seed=100)).passed
