"""Rehearsal: real sampling and updates on the virtual clock; a seed replays event for event."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.data.modes import InFlight

from . import odd_rewards
from .dense import Dense
from .harness import assert_clean, ledger, of, rehearse, worst
from .leaving import Leaving

ENV = (f"env.name={Dense.__module__}:Dense", "env.digits=1", "simulation.env.kind=lognormal", "simulation.env.mean=0.3")


def test_a_seed_replays_byte_for_byte_and_another_one_does_not(model: Path, tmp_path: Path) -> None:
    """H7."""
    runs = [
        rehearse(tmp_path / name, model, *ENV, f"seed={seed}", "max_steps=4", "lag_bound=2", "engine.count=2")[0]
        for name, seed in (("a", 0), ("b", 0), ("c", 1))
    ]
    logs = [(tmp_path / name / "events.jsonl.gz").read_bytes() for name in "abc"]
    assert logs[0] == logs[1]
    assert runs[0]["weights_sha256"] == runs[1]["weights_sha256"] != ""
    assert runs[0]["events_sha256"] == runs[1]["events_sha256"]
    assert logs[0] != logs[2]
    assert runs[0]["weights_sha256"] != runs[2]["weights_sha256"]


def test_rewards_that_hang_or_leave_are_cut_off_and_the_seed_replays_all_the_same(model: Path, tmp_path: Path) -> None:
    settings = (f"reward={odd_rewards.__name__}:odd", "deadlines.score_s=2", "workers.replace_failed=8",
                "max_steps=1", "lag_bound=0")  # fmt: skip
    runs = [rehearse(tmp_path / name, model, *settings) for name in "ab"]
    assert runs[0][0]["events_sha256"] == runs[1][0]["events_sha256"], "the wall clock's deadlines leave no trace"
    assert runs[0][0]["weights_sha256"] == runs[1][0]["weights_sha256"] != ""
    events = runs[0][1]
    assert_clean(events)
    assert runs[0][0]["version"] == 1
    reasons = [e["reason"] for e in of(events, "TrajEnd") if e["ending"] == "failed"]
    for part in ("deadline of 2 s", "exit status 3"):
        assert any(part in reason for reason in reasons), (part, reasons)


def test_an_environment_that_leaves_fails_its_rollout_and_takes_nobody_along(model: Path, tmp_path: Path) -> None:
    settings = (f"env.name={Leaving.__module__}:Leaving", "workers.replace_failed=20", "max_steps=2", "lag_bound=0",
                "eval.tasks=8", "eval.every=1")  # fmt: skip
    result, events = rehearse(tmp_path / "run", model, *settings)
    assert_clean(events)
    assert result["version"] == 2
    reasons = [e["reason"] for e in of(events, "TrajEnd") if e["ending"] == "failed"]
    for part in ("SystemExit", "called os._exit(0), which would end the whole run"):
        assert any(part in reason for reason in reasons), (part, reasons)


@pytest.mark.parametrize("lag_bound", [0, 1, 2, 3, 5])
def test_any_bound_and_any_number_of_steps_ends_within_the_bound(lag_bound: int, model: Path, tmp_path: Path) -> None:
    for steps in range(1, 6):
        result, events = rehearse(
            tmp_path / str(steps), model, *ENV, f"lag_bound={lag_bound}", f"max_steps={steps}", "engine.max_num_seqs=3"
        )
        assert_clean(events)
        assert result["version"] == result["steps"] == steps
        assert worst(events) == result["staleness"]["max"] <= lag_bound
        counts = ledger(events)
        assert counts["submitted"] == counts["trained"] == steps * 4, "nothing dropped, nothing left over"


@pytest.mark.parametrize("mode", tuple(InFlight))
def test_each_in_flight_mode_keeps_every_invariant(mode: str, model: Path, tmp_path: Path) -> None:
    """A4: generations that span many versions; the oldest token counts."""
    result, events = rehearse(
        tmp_path / "run",
        model,
        *ENV,
        "lag_bound=3",
        "max_steps=6",
        f"control.in_flight={mode}",
        "engine.max_num_seqs=3",
        "simulation.decode_base_s=0.4",
        "simulation.step_base_s=0.1",
        "simulation.publish_s=0.01",
        "sampling.max_new_tokens=10",
    )
    assert_clean(events)
    assert result["ledger"]["rejected"] == result["ledger"]["cancelled"] == 0
    spans = [len(e["versions"]) for e in of(events, "TrajDone")]
    if mode in ("keep", "reprefill", "abort"):
        assert max(spans) > 1, "no generation met an update: the test shows nothing"
    else:
        assert max(spans) == 1
    for event in of(events, "StepStart"):
        assert event["staleness"]["max"] <= 3


def test_losses_do_not_depend_on_the_clock_when_the_batches_are_the_same(model: Path, tmp_path: Path) -> None:
    """With real learning, all times doubled."""
    base = ["max_steps=3", "lag_bound=0"]
    once = rehearse(tmp_path / "a", model, *ENV, *base)[0]
    slow = ["simulation.decode_base_s=0.02", "simulation.step_base_s=1.0", "simulation.env.mean=0.6"]
    twice = rehearse(tmp_path / "b", model, *ENV, *base, *slow)[0]
    assert once["weights_sha256"] == twice["weights_sha256"]
    assert twice["virtual_s"] > once["virtual_s"]
