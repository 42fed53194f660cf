"""Log-ratios from noise alone."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.kernel.errors import DataError
from stretto.tabular.entr.token_noise import engine_noise, entropy, first_order_law, positions, sample, softmax


def test_entropy_of_known_distributions() -> None:
    found = entropy(np.array([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]]))
    assert found == pytest.approx([0, np.log(4), np.log(2)], abs=1e-15)


def test_the_mean_square_follows_the_first_order_law() -> None:
    law = first_order_law(seed=3, vocabulary=16, draws=2000, temperatures=np.array([0.5, 2, 4]))
    assert np.abs(law.scale / law.collision - 1).max() < 0.1
    assert (law.collision <= law.entropy).all()


def test_samples_follow_the_distribution_at_given_uniforms() -> None:
    p = np.tile([0.2, 0.5, 0.3], (4, 1))
    assert sample(p, np.array([0.0, 0.19, 0.21, 0.99])).tolist() == [0, 0, 1, 2]
    assert sample(p, np.array([0.2, 0.69, 0.71, 1 - 1e-17])).tolist() == [1, 1, 2, 2]


def test_engine_noise_is_a_distribution_above_its_floor() -> None:
    noisy = engine_noise(softmax(np.array([[0.0, 9, 30]])), np.array([[-5.0, 0, 1]]))
    assert noisy.sum() == pytest.approx(1)
    assert noisy.min() > 0.99e-9


def test_positions_repeat_with_their_seed_and_differ_by_noise() -> None:
    drift, again = positions("drift", 4, count=50), positions("drift", 4, count=50)
    assert (drift.d == again.d).all()
    assert np.abs(positions("engine", 4, count=50).entropy - drift.entropy).max() < 0.2
    with pytest.raises(DataError, match="unknown noise"):
        positions("bf16")  # type: ignore[arg-type]
