"""Routes to old logits, as ``stretto reproduce old-logits`` runs them."""

from __future__ import annotations

import pytest

from stretto.papers import old_logits
from stretto.papers.base import Settings


@pytest.mark.slow
def test_the_quick_form_passes() -> None:
    outcome = old_logits.reproduce(Settings(quick=True))
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 10])
def test_the_full_form_passes_for_other_seeds(first_seed: int) -> None:
    assert old_logits.reproduce(Settings(first_seed=first_seed)).passed
