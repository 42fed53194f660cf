"""Rates on logarithmic axes."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.slopes import log_spaced, loglog_slope


def test_a_power_law_is_found_and_its_interval_covers_it() -> None:
    x = np.logspace(1, 5, 20)
    exact = loglog_slope(x, 3 * x**-0.4)
    assert (exact.value, exact.low, exact.high) == pytest.approx((-0.4, -0.4, -0.4))
    assert np.exp(exact.level) == pytest.approx(3)
    noisy = x**-0.4 * np.exp(0.3 * np.random.default_rng(0).normal(size=(32, 20)))
    found = loglog_slope(x, noisy)
    assert found.low < -0.4 < found.high
    assert 0.005 < found.high - found.low < 0.1


def test_only_the_last_decades_count() -> None:
    x = np.logspace(0, 4, 41)
    y = np.where(x < 100, 1.0, (x / 100) ** -0.5)
    assert loglog_slope(x, y, decades=2).value == pytest.approx(-0.5)
    assert loglog_slope(x, y).value > -0.4


def test_what_has_no_slope_is_refused() -> None:
    x = np.array([1.0, 10.0, 100.0])
    for arguments, said in [
        ((x, [1, 1]), r"y has shape \[2\]"),
        ((x, [1, 0, 1]), "the mean of y must be positive"),
        ((x, [1, 1, 1], 1), "only 2 points"),
        ((-x, [1, 1, 1]), "x must be positive and increasing"),
        ((x, [1, 1, 1], -1), "decades = -1"),
    ]:
        with pytest.raises(ConfigError, match=said):
            loglog_slope(*arguments)
    for change, said in [({"resamples": 0}, "resamples"), ({"resamples": 2.5}, "resamples"), ({"seed": -1}, "seed")]:
        with pytest.raises(ConfigError, match=f"loglog_slope: {said}"):
            loglog_slope(x, np.ones((2, 3)), **change)
    with pytest.raises(ConfigError, match="loglog_slope: y has shape"):
        loglog_slope(x, np.ones((0, 3)))
    assert loglog_slope(x, x, 500).value == pytest.approx(1)


def test_points_on_a_logarithmic_axis() -> None:
    assert log_spaced(1000, 4).tolist() == [1, 10, 100, 1000]
    assert log_spaced(100_000, 3, first=1000).tolist() == [1000, 10_000, 100_000]
    assert log_spaced(3, 40).tolist() == [1, 2, 3]
    for arguments, said in (((0, 4), "last = 0"), ((10, 1), "points = 1"), ((10, 4, 11), "last = 10")):
        with pytest.raises(ConfigError, match=f"log_spaced: {said}"):
            log_spaced(*arguments)
