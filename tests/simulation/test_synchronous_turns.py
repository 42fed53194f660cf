"""PEARL's eq. 1 against the simulated engine, turn by turn."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stretto.control.pearl import PRESETS, Topology, makespan_s
from stretto.simulation.synchronous_turns import rollout_s

CASES = [(name, batch, workers) for name in PRESETS for batch in (32, 48, 64, 96) for workers in (1, 2, 5, 6, 8)]


@pytest.mark.parametrize(("name", "batch", "workers"), CASES)
def test_the_predictor_is_within_five_per_cent_of_the_simulated_engine(name: str, batch: int, workers: int) -> None:
    profile = PRESETS[name]
    predicted_s = makespan_s(profile, batch, Topology(colocated=workers))
    assert rollout_s(profile, batch, workers) == pytest.approx(predicted_s, rel=0.05)


@pytest.mark.parametrize(("name", "batch", "workers"), [case for case in CASES if case[1] % case[2] == 0])
def test_the_predictor_is_exact_for_whole_turns_and_equal_shares(name: str, batch: int, workers: int) -> None:
    profile = replace(PRESETS[name], turns=7)
    predicted_s = makespan_s(profile, batch, Topology(colocated=workers))
    assert rollout_s(profile, batch, workers) == pytest.approx(predicted_s, rel=1e-9)
