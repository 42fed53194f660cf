from __future__ import annotations

import numpy as np
from scipy import stats

from stretto.rollout.noise import uniforms


def test_a_uniform_depends_on_its_counters_alone() -> None:
    whole = uniforms(3, np.array([5, 9])[:, None], np.arange(50), 0)
    assert whole.shape == (2, 50)
    for row, trajectory in enumerate((5, 9)):
        for position in (0, 17, 49):
            assert uniforms(3, trajectory, position)[0] == whole[row, position]


def test_each_counter_matters() -> None:
    base = uniforms(1, 2, np.arange(100), 0)
    for other in (uniforms(2, 2, np.arange(100)), uniforms(1, 3, np.arange(100)), uniforms(1, 2, np.arange(100), 1)):
        assert not np.isclose(base, other).any()
    assert uniforms(1, 2, 3)[0] != uniforms(1, 3, 2)[0]


def test_uniforms_are_uniform_and_uncorrelated_over_neighbouring_counters() -> None:
    values = uniforms(0, np.arange(200)[:, None], np.arange(500), 0)
    assert stats.kstest(values.ravel(), "uniform").pvalue > 1e-3
    for a, b in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.015


def test_uniforms_stay_inside_the_open_interval_for_extreme_counters() -> None:
    values = uniforms(-1, np.array([-(2**62), 2**62, 0]), 2**62, 2**31)
    assert ((values > 0) & (values < 1)).all()
    assert len(set(values.tolist())) == 3
