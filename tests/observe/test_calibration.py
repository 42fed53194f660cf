"""The collapse detector, and the step size that the fitted laws allow."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError, DataError
from stretto.observe.calibration import Laws, Trial, collapse_step, fit_laws


def test_a_fall_below_the_fraction_of_the_best_is_found_at_its_step() -> None:
    rewards = [0.1] * 10 + [0.8] * 20 + [0.0] * 20
    # the mean of 10 lies at 0.7 of the best with three zeros in the window, at 0.6 with four
    assert collapse_step(rewards, fraction=0.65) == 30 + 4 - 1
    assert collapse_step(rewards, window=1) == 30
    assert collapse_step(rewards, fraction=0.05) == 30 + 10 - 1


def test_runs_that_do_not_collapse_are_censored() -> None:
    assert collapse_step([0.1] * 10 + [0.8] * 40) is None
    assert collapse_step([]) is None
    assert collapse_step([0.9, 0.0, 0.0], window=5) is None, "no whole window yet"


def test_a_slow_start_is_no_collapse() -> None:
    assert collapse_step([0.5, 0.1, 0.1, 0.2, 0.3], window=1) is None, "the best is still the first"
    assert collapse_step([0.5, 0.1, 0.6, 0.3], window=1) == 3
    assert collapse_step([-1.0, -0.5, -0.9], window=1) is None, "a share of a negative best means nothing"


def test_a_distance_beyond_its_limit_is_a_collapse_as_well() -> None:
    rewards = [0.1] * 10 + [0.8] * 20 + [0.0] * 20
    assert collapse_step(rewards, distances=[0.1] * 5 + [3.0] * 45, limit=2.0) == 5
    assert collapse_step(rewards, 0.65, distances=[0.1] * 50, limit=2.0) == 33
    assert collapse_step([0.5] * 20, distances=[0.1] * 7 + [math.nan] * 13, limit=2.0) == 7


def test_the_detector_refuses_what_it_cannot_judge() -> None:
    with pytest.raises(DataError, match="finite"):
        collapse_step([0.1, math.nan])
    with pytest.raises(ConfigError, match="fraction"):
        collapse_step([0.1], fraction=1.0)
    with pytest.raises(ConfigError, match="window"):
        collapse_step([0.1], window=0)


def table(interval_budget: float, horizon_budget: float) -> list[Trial]:
    """A sweep that obeys both laws: unstable above interval_budget / S, collapse at horizon_budget / rate."""
    rates = [interval_budget / 64 * 2**i for i in range(8)]
    return [
        Trial(s, rate, round(horizon_budget / rate * 1000) if s * rate > interval_budget else None)
        for s in (1, 4, 16, 64)
        for rate in rates
    ]


def test_the_fit_returns_the_constants_of_a_synthetic_table() -> None:
    laws = fit_laws(table(6.4, 3.2))
    assert laws.interval_budget == pytest.approx(6.4)
    assert laws.horizon_budget == pytest.approx(3200, rel=1e-3)
    assert laws.largest == pytest.approx({1: 6.4, 4: 1.6, 16: 0.4, 64: 0.1})
    assert (laws.collapsed, laws.censored) == (1 + 3 + 5 + 7, 7 + 5 + 3 + 1)
    assert laws.rate(16, 10) == pytest.approx(0.4)
    assert laws.rate(1, 32000) == pytest.approx(0.1, rel=1e-3)
    assert laws.rate(16, 10, safety=0.5) == pytest.approx(0.2)


def test_a_stable_rate_above_a_collapsed_one_does_not_count() -> None:
    laws = fit_laws([Trial(4, 0.1, None), Trial(4, 0.2, 50), Trial(4, 0.4, None)])
    assert laws.largest == {4: 0.1}


def test_one_collapsed_seed_makes_a_rate_unstable() -> None:
    laws = fit_laws([Trial(4, 0.1, None), Trial(4, 0.2, None), Trial(4, 0.2, 50)])
    assert laws.largest == {4: 0.1}
    assert laws.horizon_budget == pytest.approx(10.0)


def test_without_a_collapse_only_the_interval_limits() -> None:
    laws = fit_laws([Trial(4, 0.1, None)])
    assert laws.horizon_budget == math.inf
    assert laws.rate(8, 10**9) == pytest.approx(0.05)


@given(
    st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**6),
)  # fmt: skip
def test_the_rate_never_increases_with_interval_or_horizon(a: float, b: float, s: int, t: int, more: int) -> None:
    laws = Laws(a, b, {1: a}, 1, 1)
    assert laws.rate(s + more, t) <= laws.rate(s, t)
    assert laws.rate(s, t + more) <= laws.rate(s, t)


def test_infeasible_input_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"sync interval 16 collapsed from the smallest step size 0\.1 on"):
        fit_laws([Trial(4, 0.1, None), Trial(16, 0.1, 20), Trial(16, 0.2, None)])
    with pytest.raises(ConfigError, match="empty"):
        fit_laws([])
    for bad in (Trial(0, 0.1, None), Trial(4, 0.0, None), Trial(4, math.nan, None), Trial(4, 0.1, 0)):
        with pytest.raises(ConfigError, match="in the table"):
            fit_laws([bad])
    laws = Laws(1.0, 1.0, {1: 1.0}, 1, 0)
    for interval, horizon, safety in ((0, 1, 1.0), (1, 0, 1.0), (1, 1, 0.0), (1, 1, -1.0), (1, 1, np.nan)):
        with pytest.raises(ConfigError, match="calibration"):
            laws.rate(interval, horizon, safety)
