"""COPC's experiment."""

from __future__ import annotations

import pytest

from stretto.papers import copc
from stretto.papers.base import Settings


@pytest.mark.slow
def test_the_table_of_the_joint_sweep_is_reproduced() -> None:
    outcome = copc.reproduce(Settings(quick=True))
    assert outcome.passed
    asked = {c.name: c for c in outcome.checks}
    assert asked["MSE of trace, a row a mask"].passed
    biases = asked["residual, [1,1] -> raw: bias by mask"].measured
    assert biases["[.8,1.25]"] == [0.957, 0.930]
    assert biases["none"] == [0.58, pytest.approx(1.66, abs=0.005)]


@pytest.mark.slow
def test_the_conditions_hold_for_other_trees() -> None:
    assert copc.reproduce(Settings(first_seed=8)).passed
