"""Ids are counters, through the whole run and its resumptions; what is drawn doesn't hang on them."""

from __future__ import annotations

from pathlib import Path

from stretto.kernel.events import read_events
from stretto.observe.checker import check_events

from . import runs
from .harness import assert_clean, keys, of, rehearse, simulate

LARGE = ("prompts_per_step=1", "group_size=1001", "lag_bound=1", "max_steps=2")


def submitted(out: Path) -> list[int]:
    return [id for e in of(read_events(out), "Submitted") for id in e["traj"]]


def test_groups_of_more_than_a_thousand_run_and_members_stay_apart(tmp_path: Path) -> None:
    settings = ("engine.max_num_seqs=512", "simulation.failure_probability=0.002", "simulation.lengths.mean=20")
    result, events = simulate(tmp_path / "run", *LARGE, *settings)
    assert_clean(events)
    assert result["steps"] == 2
    assert any("replaces" in e for e in of(events, "Submitted")), "and one that failed is replaced"
    ids = [id for e in of(events, "Submitted") for id in e["traj"]]
    assert ids == list(range(len(ids)))
    assert len(set(keys(events).values())) == len(ids)


def test_a_rehearsal_samples_groups_of_more_than_a_thousand(model: Path, tmp_path: Path) -> None:
    result, events = rehearse(tmp_path / "run", model, *LARGE, "max_steps=1", "lag_bound=0", "engine.max_num_seqs=1001",
                              "sampling.max_new_tokens=1")  # fmt: skip
    assert_clean(events)
    assert result["ledger"]["trained"] == 1001


def test_a_resumed_run_goes_on_counting(model: Path, tmp_path: Path) -> None:
    settings = ("max_steps=4", "lag_bound=2", "save_every=2", "keep_checkpoints=9", "simulation.env.kind=uniform",
                "simulation.env.high=3")  # fmt: skip
    rehearse(tmp_path / "run", model, *settings)
    runs.go_on(tmp_path / "run", mode="rehearse", checkpoint=tmp_path / "run/checkpoints/step-000002")
    events = read_events(tmp_path / "run")
    assert_clean(events)
    ids = submitted(tmp_path / "run")
    assert ids == list(range(len(ids)))
    assert len(set(keys(events).values())) == len(ids), "and each draws with a key of its own"


def test_an_id_that_comes_again_is_reported_however_long_ago_it_was(tmp_path: Path) -> None:
    _, events = simulate(tmp_path / "run", "prompts_per_step=2", "group_size=2", "lag_bound=1", "max_steps=3")
    later = of(events, "Submitted")[-1]
    later["traj"] = [0, *later["traj"][1:]]
    assert any(v.message.startswith("trajectory 0 was submitted before") for v in check_events(events))
