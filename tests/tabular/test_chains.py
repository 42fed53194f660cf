"""Laws and times of Markov chains, against closed forms and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError
from stretto.tabular.chains import hitting_times, mixing_time, stationary, time_reversal


def _random(seed: int, states: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(states, 0.6), size=states)


@given(st.integers(0, 50), st.integers(2, 7))
def test_stationary_law_and_reversal(seed: int, states: int) -> None:
    p = 0.95 * _random(seed, states) + 0.05 / states
    mu = stationary(p)
    assert np.abs(mu @ p - mu).max() < 1e-13
    assert mu.sum() == pytest.approx(1, abs=1e-13)
    back = time_reversal(p)
    assert np.abs(back.sum(1) - 1).max() < 1e-12
    assert np.abs(stationary(back) - mu).max() < 1e-12  # reversal preserves the law
    assert np.abs(time_reversal(back) - p).max() < 1e-11


@given(st.integers(0, 30), st.floats(0.01, 0.6))
def test_mixing_time_is_the_first_power_below_the_level(seed: int, level: float) -> None:
    p = 0.9 * _random(seed, 4) + 0.1 / 4
    mu, power, t = stationary(p), np.eye(4), 0
    while 0.5 * np.abs(power - mu).sum(1).max() > level:
        power, t = power @ p, t + 1
    assert mixing_time(p, level) == t


def test_hitting_times_against_the_two_state_chain_and_first_steps() -> None:
    a, b = 0.3, 0.05
    assert hitting_times([[1 - a, a], [b, 1 - b]]) == pytest.approx(np.array([[0, 1 / a], [1 / b, 0]]))
    p = _random(3, 5) * 0.9 + 0.02
    h = hitting_times(p)
    for x in range(5):
        for y in range(5):
            if x != y:
                assert h[x, y] == pytest.approx(1 + p[x] @ h[:, y], rel=1e-10)


def test_a_reversible_chain_is_its_own_reversal() -> None:
    weights = np.random.default_rng(0).random((4, 4))
    weights += weights.T
    p = weights / weights.sum(1, keepdims=True)
    assert np.abs(time_reversal(p) - p).max() < 1e-12


def test_bad_chains_are_named() -> None:
    for function in (stationary, mixing_time, hitting_times, time_reversal):
        with pytest.raises(ConfigError, match=f"{function.__name__}: transitions are a reducible chain"):
            function([[1, 0], [0, 1]])
        with pytest.raises(ConfigError, match=f"{function.__name__}: transitions are a reducible chain"):
            function([[0.5, 0.5], [0, 1]])
        with pytest.raises(ConfigError, match=rf"{function.__name__}: transitions\[1\] sums to 0.5"):
            function([[1, 0], [0, 0.5]])
        with pytest.raises(ConfigError, match=f"{function.__name__}: transitions must be"):
            function([[0.5, 0.5]])
    with pytest.raises(ConfigError, match="periodic"):
        mixing_time([[0, 1], [1, 0]])
    with pytest.raises(ConfigError, match="mixing_time: level = 0"):
        mixing_time([[0.5, 0.5], [0.5, 0.5]], 0)


@pytest.mark.parametrize("seed", range(3))
def test_another_library_agrees_on_the_stationary_law(seed: int) -> None:
    from quantecon import MarkovChain

    p = _random(seed, 6)
    assert np.abs(MarkovChain(p).stationary_distributions[0] - stationary(p)).max() < 1e-12
