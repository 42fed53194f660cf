"""Robust means, how much they trim, and contamination."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError
from stretto.tabular.q import Corruption, Rule, contaminate, local_share, median_of_means, trim_for, trimmed_mean

samples = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40)
trims = st.floats(0, 0.49)


@settings(max_examples=60)
@given(samples, trims, st.floats(-10, 10), st.floats(0.1, 10), st.randoms())
def test_trimmed_mean_goes_along_with_order_shift_and_scale(
    x: list[float], trim: float, shift: float, scale: float, random: object
) -> None:
    mean = trimmed_mean(x, trim)
    mixed = list(x)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert trimmed_mean(mixed, trim) == pytest.approx(mean, abs=1e-9)
    assert trimmed_mean(np.array(x) + shift, trim) == pytest.approx(mean + shift, abs=1e-9)
    assert trimmed_mean(np.array(x) * -scale, trim) == pytest.approx(-mean * scale, abs=1e-8)


@settings(max_examples=60)
@given(samples, trims, st.data())
def test_what_is_dropped_may_be_anything_on_its_side(x: list[float], trim: float, data: st.DataObject) -> None:
    ordered = np.sort(x)
    drop = min(math.ceil(trim * len(x) * (1 - 1e-12)), (len(x) - 1) // 2)
    wild = ordered.copy()
    for i in range(drop):
        wild[i] = ordered[drop] - data.draw(st.floats(0, 1e6))
        wild[-1 - i] = ordered[-1 - drop] + data.draw(st.floats(0, 1e6))
    assert trimmed_mean(wild, trim) == trimmed_mean(x, trim) or drop == 0
    assert trimmed_mean(x, trim) == pytest.approx(ordered[drop : len(x) - drop].mean(), abs=1e-9)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-1, 1)), min_size=1, max_size=40), trims)
def test_trimmed_mean_moves_no_more_than_its_samples(pairs: list[tuple[float, float]], trim: float) -> None:
    x, step = np.array(pairs).T
    assert abs(trimmed_mean(x + step, trim) - trimmed_mean(x, trim)) <= np.abs(step).max() + 1e-9


def test_no_trim_is_the_mean_and_few_samples_leave_a_median() -> None:
    assert trimmed_mean([4.0, 1.0, 1.0], 0) == 2
    assert trimmed_mean([0.0, 1.0, 2.0, 900.0], 0.45) == 1.5
    assert trimmed_mean([[0.0, 5.0, 1e9], [1.0, 2.0, 3.0]], 0.1).tolist() == [5, 2]


def test_median_of_means() -> None:
    assert median_of_means([1.0, 3.0, 10.0, 20.0, 1e9, 0.0, 77.0], 2) == 15  # means 2, 15, 5e8; 77 is left out
    assert median_of_means([1.0, 3.0, 5.0, 5.0], 2) == 3.5
    assert median_of_means([1.0, 3.0], 8) == 2
    assert median_of_means([5.0, 1.0, 9.0], 1) == 5


def test_how_much_to_trim() -> None:
    assert trim_for(0) == 0
    assert trim_for(0.01) == pytest.approx(0.02)
    assert trim_for(0.4) == 0.45
    assert trim_for(0.01, 100) == pytest.approx(0.01 + 3 * math.sqrt(1e-4))
    assert trim_for(0.1, 10**6) == pytest.approx(0.155)
    visits = np.array([[0.5, 0.3], [0.2, 0.0]])
    assert local_share(0.1, visits) == pytest.approx(0.025 / (0.9 * visits + 0.025))
    assert (local_share(0, visits) == 0).all()


def test_the_corrupted_count_is_binomial_and_the_rest_stays() -> None:
    n, share = 2000, 0.05
    counts = []
    for seed in range(300):
        x, hit = contaminate(np.arange(n), share, -7.0, seed)
        assert (x[hit] == -7).all()
        assert (x[~hit] == np.arange(n)[~hit]).all()
        counts.append(hit.sum())
    spread = share * (1 - share) * n
    assert abs(np.mean(counts) - share * n) < 4 * math.sqrt(spread / 300)
    assert abs(np.var(counts) / spread - 1) < 4 * math.sqrt(2 / 300)


def test_bad_input_is_one_error_that_names_the_argument() -> None:
    for call, words in (
        (lambda: trimmed_mean([1.0], 0.5), "trimmed_mean: trim"),
        (lambda: trimmed_mean([1.0, math.nan], 0.1), "trimmed_mean: x"),
        (lambda: trimmed_mean([], 0.1), "trimmed_mean: samples in x"),
        (lambda: median_of_means([1.0], 0), "median_of_means: block"),
        (lambda: trim_for(0.5), "trim_for: share"),
        (lambda: local_share(0.1, [[0.5, 0.4]]), "local_share: sum of visits"),
        (lambda: contaminate([1.0], 0.5, 0.0, 0), "contaminate: share"),
        (lambda: contaminate([1.0], 0.1, 0.0, -1), "contaminate: seed"),
        (lambda: contaminate([1.0], 0.1, 0.0, 2**64), "contaminate: seed"),
        (lambda: local_share(0.1, [[]]), "local_share: sum of visits"),
        (lambda: Corruption(0.1, 1e12), "Corruption: magnitude"),
        (lambda: Rule(trim=0.5), "Rule: trim"),
        (lambda: Rule(trim=[]), "Rule: trim"),
        (lambda: Rule(step=0.0), "Rule: step"),
        (lambda: Corruption(0.5), "Corruption: share"),
        (lambda: Corruption(0.1, math.inf), "Corruption: magnitude"),
        (lambda: Corruption(0.1, states="all"), "Corruption: states"),  # type: ignore[arg-type]
        (lambda: Rule("huber"), "Rule: method"),  # type: ignore[arg-type]
        (lambda: Rule("mean", trim=0.1), "Rule: trim"),
        (lambda: Rule(step=1.5), "Rule: step"),
        (lambda: Rule(trim=0.6).trims(0.1, 2, 2), "Rule: trim"),
        (lambda: Rule(trim=[0.1, 0.1, 0.1]).trims(0.1, 2, 2), "Rule: trim"),
    ):
        with pytest.raises(ConfigError, match=words):
            call()


def test_a_share_of_a_whole_number_of_samples_drops_just_these() -> None:
    x = np.arange(100.0)
    x[7], x[92] = -1e6, 1e6  # after sorting: the first and the last
    assert trimmed_mean(x, 0.07) == pytest.approx(np.sort(x)[7:93].mean(), abs=1e-12)  # .07 x 100 > 7 in floats
