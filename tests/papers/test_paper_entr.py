"""ENTR's experiment."""

from __future__ import annotations

import dataclasses

import pytest

from stretto.papers import Settings, entr
from stretto.tabular.entr.token_noise import first_order_law, positions


def test_the_law_and_its_pairs_are_the_references() -> None:
    law = first_order_law(0)
    checks = [*entr.scale("seed 0", law), entr.pairs(law)]
    assert all(check.passed for check in checks)
    assert checks[1].measured == pytest.approx(0.033, abs=5e-4)
    off = dataclasses.replace(law, scale=1.06 * law.scale)
    assert entr.scale("seed 0", off)[0].passed is False


@pytest.mark.parametrize("noise", entr.NOISES)
def test_the_masks_fall_where_they_should(noise: entr.Noise) -> None:
    heights, _ = entr.placements(noise, positions(noise, 1))
    assert heights.measured["entr"] < heights.measured["all"] < heights.measured["fixed"]
    assert [check.passed for check in entr.streams(noise, range(50, 56))] == [True, True, True, None]


@pytest.mark.slow
def test_the_experiment_passes() -> None:
    assert entr.reproduce(Settings()).passed
