"""AsyncFlow, as ``stretto reproduce asyncflow`` runs it."""

from __future__ import annotations

import dataclasses

import pytest
from matplotlib.figure import Figure

from stretto.papers import asyncflow
from stretto.papers.asyncflow_queue import PROMISES, drill
from stretto.papers.base import Settings
from stretto.pool.row_index import RowIndex
from stretto.pool.rows import Rows


@pytest.mark.parametrize("seed", [0, 1, 5000])
def test_the_store_keeps_its_promises_in_a_drill(seed: int) -> None:
    assert dict(drill(seed)) == dict.fromkeys(PROMISES, 0)


def test_a_drill_tells_the_same_schedule_again_and_others_for_other_seeds() -> None:
    assert drill(3) == drill(3)


def test_a_store_that_breaks_a_promise_fails_and_nothing_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    def live(self: RowIndex, rows: Rows) -> object:
        return rows.index >= 0

    monkeypatch.setattr(RowIndex, "live", live)
    outcome = asyncflow.reproduce(Settings(seeds=2, quick=True))
    assert outcome.failed
    assert len(outcome.checks) == len(PROMISES)
    assert any(c.passed is False and c.name.startswith("late writes taken") for c in outcome.checks)


def test_the_ratio_to_a_colocated_trainer_grows_and_without_fixed_parts_there_is_none_to_gain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ratios = [asyncflow.colocated_ratio(devices) for devices in asyncflow.DEVICES]
    assert ratios == sorted(ratios)
    monkeypatch.setattr(asyncflow, "FIXED", 0.0)
    assert asyncflow.colocated_ratio(512) == pytest.approx(1, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", [0, 5000])
def test_the_quick_form_passes_and_meets_the_expected_speedups(first_seed: int) -> None:
    outcome = asyncflow.reproduce(Settings(quick=True, first_seed=first_seed))
    assert outcome.passed, [check for check in outcome.checks if check.passed is False]
    checks = {check.name: check for check in outcome.checks}
    assert checks["streamed / sequential"].measured == pytest.approx(1.97, abs=0.005)
    assert checks["deferred / sequential"].measured == pytest.approx(2.82, abs=0.005)
    assert dataclasses.asdict(checks["colocated / deferred, largest"])["absent"], (
        "the model's largest ratio is beyond the band"
    )
    assert outcome.plot is not None
    outcome.plot(Figure())
