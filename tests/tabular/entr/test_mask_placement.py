"""Which tokens a region drops."""

from __future__ import annotations

import numpy as np
import pytest

from stretto.tabular.entr.mask_placement import dropped, placement, shares
from stretto.tabular.entr.token_noise import Positions

RNG = np.random.default_rng(0)
SEEN = Positions(RNG.normal(size=400) * 0.1, RNG.uniform(0, 3, 400))


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_both_regions_drop_the_share_they_are_given(share: float) -> None:
    assert dropped(SEEN, "fixed", share).mean() == pytest.approx(share)
    assert dropped(SEEN, "entr", share).mean() == pytest.approx(share)


def test_a_fixed_threshold_drops_the_largest_ratios_and_entr_the_largest_for_their_entropy() -> None:
    mask = dropped(SEEN, "fixed")
    assert np.abs(SEEN.d[mask]).min() > np.abs(SEEN.d[~mask]).max()
    mask, score = dropped(SEEN, "entr"), SEEN.d**2 / (SEEN.entropy + 0.01)
    assert score[mask].min() > score[~mask].max()


def test_placement_measures_entropy_against_the_mask() -> None:
    found = placement(SEEN, "entr")
    mask = dropped(SEEN, "entr")
    assert found.entropy == pytest.approx(SEEN.entropy[mask].mean())
    assert found.correlation < -0.1  # noise without regard to entropy is dropped where entropy is low
    heights, rates = shares(SEEN, "entr", bins=5)
    assert heights == sorted(heights)
    assert rates[0] > rates[-1]
    assert np.mean(rates) == pytest.approx(0.05)


def test_placement_of_no_token_or_of_all_has_no_correlation() -> None:
    assert placement(SEEN, "entr", 0.2).share == pytest.approx(0.2)
    none = placement(SEEN, "entr", 0.0)
    assert (none.correlation, none.share) == (0.0, 0.0)
    assert np.isnan(none.entropy)
