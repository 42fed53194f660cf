"""The potential-games experiment."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from stretto.papers import potential_games
from stretto.papers.base import Settings

NAMES = ["npg-alpha", "npg-online", "npg-episodic", "npg-jobs"]


def test_the_parts_have_the_names_that_commands_use() -> None:
    assert list(potential_games.PARTS) == NAMES


def test_alpha_comes_out_exactly_and_below_its_bound() -> None:
    outcome = potential_games.alpha(Settings(seeds=2, quick=True))
    assert outcome.passed
    found = {c.name: c for c in outcome.checks}
    assert found["kappa 0.2: alpha, bound"].measured == pytest.approx((0.106448, 0.555226), abs=1e-6)
    by_floor = found["gap by floor, exact updates"].measured
    assert by_floor[1e-2] / by_floor[1e-3] == pytest.approx(10, rel=0.1)  # proportional, while it is small
    assert found["largest gap / (floor x 2 actions x horizon)"].measured < 1
    assert found["largest gap / (bias x horizon), bias >= 0.1"].measured < 1
    assert outcome.plot is not None
    figure = Figure(figsize=(9, 4))
    outcome.plot(figure)
    assert len(figure.axes) == 4


def test_job_schedulers_find_an_equilibrium() -> None:
    outcome = potential_games.scheduling(Settings(quick=True))
    assert outcome.passed
    distancing, (uniform, learned) = (c.measured for c in outcome.checks[-2:])
    assert learned[0] < 0.2 * uniform[0]
    assert distancing[10] < 0.8 * distancing[0]


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 100])
def test_all_conditions_hold_with_all_seeds(first_seed: int) -> None:
    outcome = potential_games.reproduce(Settings(first_seed=first_seed))
    assert outcome.passed, [c.name for c in outcome.checks if c.passed is False]
