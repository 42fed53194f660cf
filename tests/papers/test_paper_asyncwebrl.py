"""The constant step normaliser, as ``stretto reproduce asyncwebrl`` runs it."""

from __future__ import annotations

import pytest

from stretto.papers import asyncwebrl
from stretto.papers.base import Settings


@pytest.mark.slow
def test_the_quick_form_passes_and_shows_the_control() -> None:
    outcome = asyncwebrl.reproduce(Settings(seeds=5, quick=True))
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
    found = {check.name: check.measured for check in outcome.checks}
    arm = "updates until P(verbose) < .7/.5/.3, {} (15 steps, k = 10)"
    length, const, matched = (found[arm.format(name)] for name in ("1/|tau|", "k", "k = mean |tau|"))
    assert all(raw < 0.93 * slow for raw, slow in zip(const, length, strict=True))
    assert matched == pytest.approx(length, rel=0.1), "the faster contraction is the step size"


def test_the_weight_of_a_failed_step_changes_by_the_ratio_of_lengths() -> None:
    weights = asyncwebrl.step_weights("length", (4, 2), (-1.0, 1.0))
    assert weights == pytest.approx([-0.25, 0.5])
    assert asyncwebrl.step_weights("const", (4, 2), (-1.0, 1.0)) == pytest.approx([-0.1, 0.1])


def test_a_constant_pushes_against_long_failures_where_the_length_sums_to_zero() -> None:
    lengths, advantages = (5, 5, 12, 13), (1.0, 1.0, -1.0, -1.0)
    pushes = {
        kind: sum(n * w for n, w in zip(lengths, asyncwebrl.step_weights(kind, lengths, advantages), strict=True))
        for kind in ("length", "const")
    }
    assert pushes["length"] == pytest.approx(0, abs=1e-12)
    assert pushes["const"] == pytest.approx((5 + 5 - 12 - 13) / 10), "sum of A |tau| / k"


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 100])
def test_the_full_form_passes_for_other_seeds(first_seed: int) -> None:
    assert asyncwebrl.reproduce(Settings(first_seed=first_seed)).passed
