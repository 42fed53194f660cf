"""The scaling laws of collapse, as ``stretto reproduce collapse`` runs them."""

from __future__ import annotations

import pytest

from stretto.papers import collapse
from stretto.papers.base import Settings


@pytest.mark.slow
def test_the_quick_form_passes_and_matches_the_published_figures() -> None:
    outcome = collapse.reproduce(Settings(seeds=2, quick=True))
    checks = {check.name: check for check in outcome.checks}
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
    assert checks["S eta_max, seeds 0-2"].measured == checks["S eta_max, seeds 0-2"].reference
    assert checks["slope of log eta_max, seeds 0-2"].measured == pytest.approx(-1.13, abs=0.005)
    assert "not reproduced" in outcome.verdict, "the second law is absent on the bandit"
    assert not any(c.passed is not None for c in outcome.checks if "drift" in c.name), "it has the law by construction"


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 20])
def test_the_full_form_passes_for_other_seeds(first_seed: int) -> None:
    assert collapse.reproduce(Settings(first_seed=first_seed)).passed
