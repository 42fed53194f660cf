"""ASymPO's balance, as ``stretto reproduce asympo`` runs it."""

from __future__ import annotations

import pytest

from stretto.papers import asympo
from stretto.papers.base import Settings


@pytest.mark.slow
def test_the_quick_form_passes() -> None:
    outcome = asympo.reproduce(Settings(seeds=1, quick=True))
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
    found = {check.name: check.measured for check in outcome.checks}
    assert found["largest |loss| of asympo in training"] < 1e-12
    assert all(imbalance < 0 for imbalance in found["imbalance of naive by step size"].values())


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 20])
def test_the_full_form_passes_for_other_seeds(first_seed: int) -> None:
    assert asympo.reproduce(Settings(first_seed=first_seed)).passed
