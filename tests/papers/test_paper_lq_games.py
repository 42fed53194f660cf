"""Unaware learning in linear-quadratic games, as ``stretto reproduce lq-games`` runs it."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from stretto.games.lq.cournot import Cournot
from stretto.games.lq.cournot_learning import cournot_least_squares
from stretto.games.lq.market import Learners
from stretto.papers import lq_games
from stretto.papers.base import Settings
from stretto.tabular.slopes import loglog_slope


def test_the_parts_have_their_names() -> None:
    assert list(lq_games.PARTS) == ["cournot-nash", "cournot-rate", "cournot-welfare"]


def test_the_equilibrium_passes_by_all_routes() -> None:
    outcome = lq_games.cournot_nash(Settings())
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
    assert all(check.passed for check in outcome.checks)


def test_welfare_passes_and_reports_that_profits_do_not_fall() -> None:
    outcome = lq_games.cournot_welfare(Settings(quick=True, first_seed=40))
    checks = {check.name: check for check in outcome.checks}
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
    for name in ("s=0.1: profit against Nash", "s=0.3: profit against Nash", "s=0.9: profit against Nash"):
        assert checks[name].passed is None
        assert checks[name].absent
    assert any("not reproduced" in note for note in outcome.notes)
    assert outcome.plot is not None
    outcome.plot(Figure())


@pytest.mark.parametrize(("nu", "s", "expected"), [(0.25, 0.9, -0.46), (0.5, 0.5, -0.35), (0.5, 0.9, -0.50)])
def test_the_gain_error_falls_at_least_as_fast_as_exploration_allows(nu: float, s: float, expected: float) -> None:
    marks = np.unique(np.round(np.logspace(4, 6, 21)).astype(int))
    run = cournot_least_squares(Cournot(s=s), Learners(nu=nu), 1_000_000, range(100, 116), marks.tolist())
    slope = loglog_slope(marks, run.errors(), median=True).value
    assert slope <= -(1 - nu) / 2 + 0.08
    assert slope == pytest.approx(expected, abs=0.12)
    assert np.median(run.errors()[:, -1]) < 0.06


@pytest.mark.slow
@pytest.mark.parametrize(("quick", "first_seed"), [(True, 0), (False, 0), (False, 5000)])
def test_the_whole_experiment_passes_for_other_seeds(quick: bool, first_seed: int) -> None:
    outcome = lq_games.reproduce(Settings(quick=quick, first_seed=first_seed))
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
