"""Whole runs with worker processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from stretto.observe.samples import read_samples
from stretto.rollout.types import IN_FLIGHT_MODES

from .runs import assert_clean, last_json, train


@pytest.mark.parametrize("mode", IN_FLIGHT_MODES)
def test_each_in_flight_mode_trains_to_its_end(mode: str, tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    with train(out, model, f"control.in_flight={mode}", "max_steps=6", "--json") as run:
        code, output = run.end()
    assert code == 0, output
    assert_clean(out, complete=True)
    result = last_json(output)
    assert result["version"] == 6
    assert result["staleness"]["max"] <= 2
    assert result["ledger"]["trained"] == result["ledger"]["submitted"] == 24
    ratios = [p["ratio"] for s in read_samples(out, 0) for p in s["pieces"] if p["mask"]]
    assert ratios
    assert all(math.isclose(r, 1.0, abs_tol=1e-3) for r in ratios), "version 0 sampled and trains"
