"""CHMAS's experiment."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure

from stretto.games.foraging.mini import mini
from stretto.papers import Settings, chmas
from stretto.papers.base import Outcome


@pytest.fixture(scope="module")
def foraging() -> Outcome:
    return chmas.foraging(Settings(quick=True, seeds=16))


@pytest.fixture(scope="module")
def rate() -> Outcome:
    return chmas.rate(Settings(quick=True, first_seed=500))


def test_its_parts_have_their_names() -> None:
    assert list(chmas.PARTS) == ["chmas-foraging", "chmas-rate"]


def test_the_coupled_foragers_gather_more_and_overlap_less(foraging: Outcome) -> None:
    assert [c.name for c in foraging.checks if c.passed is False] == []
    asked = [c.name for c in foraging.checks if c.passed is not None]
    assert len(asked) == 9
    assert sum("final food" in name for name in asked) == 3


def test_the_curves_are_those_expected(foraging: Outcome) -> None:
    measured = {c.name: c.measured for c in foraging.checks}
    for line, expected in chmas.EXPECTED.items():
        for what, ends in expected.items():
            assert measured[f"{chmas.WORDS[what]}, {line}"] == pytest.approx(ends, abs=0.05), (line, what)


@pytest.mark.slow
def test_the_mean_squared_gradient_falls_as_fast_as_the_bound(rate: Outcome) -> None:
    assert rate.passed
    found = {c.name: c.measured for c in rate.checks}
    assert found["slope over k >= 1000, N_f = 32"]["slope"] == pytest.approx(chmas.SLOPES[32], abs=0.12)
    assert found["tracking error, first 1000 updates, N_f = 1"] == pytest.approx(0.033, abs=0.003)
    assert found["tracking error, first 1000 updates, N_f = 32"] == pytest.approx(0.0012, abs=0.0001)
    assert draws(rate, 2)


def test_the_way_to_the_top_is_none_at_the_start_and_negative_below_it() -> None:
    model = mini()
    zeros, up = np.zeros_like(model.base), model.ascent(100)
    found = chmas.way(model, np.stack([zeros, up, -up]))
    assert found[0] == 0
    assert found[2] < 0 < found[1] < 1


def draws(outcome: Outcome, axes: int) -> bool:
    figure = Figure(figsize=(9, 4))
    assert outcome.plot is not None
    outcome.plot(figure)
    return len(figure.get_axes()) == axes and all(axis.has_data() for axis in figure.get_axes())


def test_the_figure_is_drawn(foraging: Outcome) -> None:
    assert draws(foraging, 10)


def test_a_spread_is_the_mean_and_its_interval() -> None:
    found = chmas.spread(np.array([1.0, 3.0]))
    assert found == pytest.approx({"mean": 2.0, "low": 2 - 12.706205, "high": 2 + 12.706205}, abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1000])
def test_the_experiment_passes(seed: int) -> None:
    outcome = chmas.reproduce(Settings(first_seed=seed))
    assert [c.name for c in outcome.checks if c.passed is False] == []
