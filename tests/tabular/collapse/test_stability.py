"""The toy models of staleness: their limits are where theory puts them."""

from __future__ import annotations

import math

import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.collapse import stability


@pytest.mark.parametrize("sync_interval", [1, 4, 64])
@pytest.mark.parametrize("curvature", [0.5, 3.0])
def test_a_gradient_frozen_for_a_cycle_is_stable_below_two(sync_interval: int, curvature: float) -> None:
    for product, stable in ((1.99, True), (2.01, False), (0.5, True)):
        rate = product / (sync_interval * curvature)
        factor = stability.cycle_factor(sync_interval, rate, curvature)
        assert factor == pytest.approx(1 - product)
        assert (abs(factor) < 1) == stable
        simulated = stability.frozen_cycles(0.7, sync_interval, rate, curvature, 20)
        assert simulated == pytest.approx(0.7 * factor**20, rel=1e-9)


@pytest.mark.parametrize(("lag", "limit"), [(0, 2.0), (1, 1.0), (2, 0.618034), (16, 0.095164)])
def test_a_constant_lag_has_its_limit(lag: int, limit: float) -> None:
    assert stability.lag_limit(lag) == pytest.approx(limit, abs=5e-7)


@pytest.mark.parametrize("lag", [0, 1, 2, 3, 8, 16])
def test_the_companion_matrix_agrees_within_a_thousandth(lag: int) -> None:
    limit = stability.lag_limit(lag)
    assert stability.spectral_radius(stability.lag_companion(lag, limit * 0.999)) < 1
    assert stability.spectral_radius(stability.lag_companion(lag, limit * 1.001)) > 1


def test_the_companion_matrix_is_the_recursion() -> None:
    xs = [1.0, 1.0, 1.0, 1.0]  # newest last
    matrix = stability.lag_companion(3, 0.2)
    state = matrix @ [1.0, 1.0, 1.0, 1.0]
    for _ in range(10):
        xs.append(xs[-1] - 0.2 * xs[-4])
        assert state[0] == pytest.approx(xs[-1])
        state = matrix @ state


def test_limit_times_lag_tends_to_pi() -> None:
    assert stability.lag_limit(10**6) * (2 * 10**6 + 1) == pytest.approx(math.pi, rel=1e-9)


def test_the_exit_budget_of_a_saturating_drift() -> None:
    assert stability.exit_budget(4, 0.05, 3) == pytest.approx(3.312748, abs=5e-7)


@pytest.mark.parametrize(
    ("sync_interval", "low", "high"), [(1, 3.314, 3.320), (4, 3.316, 3.344), (16, 3.33, 3.42), (64, 3.37, 3.73)]
)
def test_simulated_exits_spend_the_budget_and_a_little_more_for_staleness(
    sync_interval: int, low: float, high: float
) -> None:
    spent = [stability.spent_budget(4, 0.05, 3, sync_interval, rate) for rate in (0.001, 0.002, 0.004, 0.008)]
    places = len(str(low).split(".")[1])
    assert (round(min(spent), places), round(max(spent), places)) == (low, high)


def test_what_cannot_be_is_an_error() -> None:
    for call in (
        lambda: stability.lag_limit(-1),
        lambda: stability.exit_budget(4, 0.0, 3),
        lambda: stability.exit_budget(4, 1.0, 0.5),
        lambda: stability.spent_budget(4, 0.05, 3, 0, 0.1),
        lambda: stability.spent_budget(4, 0.05, 3, 1, 0.0),
    ):
        with pytest.raises(ConfigError):
            call()
