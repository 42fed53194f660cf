"""PACE in whole runs: what it rejects, what it scores for that, and that it does nothing where nothing is too much."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stretto.control.hooks import build_rules
from stretto.control.pace import Pace
from stretto.kernel.events import Event
from stretto.observe.checker import check_events

from .harness import assert_clean, configure, of, rehearse, simulate

SOFT = ("control.admission.name=slots", "control.batch.name=fifo", "lag_bound=1000")
CROWDED = (
    *SOFT, "max_steps=30", "prompts_per_step=4", "group_size=2", "engine.max_num_seqs=16", "engine.count=2",
    "simulation.lengths.kind=lognormal", "simulation.lengths.mean=40", "simulation.lengths.sigma=0.9",
    "simulation.prompt_tokens=10", "simulation.publish_s=0.02", "simulation.step_base_s=0.3",
)  # fmt: skip
"""Engines make about twice what trains."""
PACE = ("control.pool.name=pace", "control.pool.target_occupancy=1.5")


def rejections(events: list[Event]) -> list[list[int]]:
    """Groups rejected at once, burst by burst."""
    found: list[list[int]] = []
    before = None
    for event in events:
        here = event["e"] == "TrajEnd" and event["ending"] == "rejected"
        if here and before is not None:
            before.append(event["group"])
        elif here:
            found.append(before := [event["group"]])
        else:
            before = None
    return found


@pytest.mark.parametrize("mode", ["keep", "reprefill", "drain", "abort", "pin"])
def test_its_decisions_follow_from_the_log(mode: str, tmp_path: Path) -> None:
    """A view that reads the log asks for the same prefixes, and rejects the same groups; a whole batch is left."""
    settings = (*CROWDED, *PACE, f"control.in_flight={mode}")
    _, events = simulate(tmp_path / "run", *settings)
    assert_clean(events)
    rules = build_rules(configure(*settings))
    assert isinstance(rules.pool, Pace)
    view, bursts, left = rules.view(), iter(rejections(events)), None
    asked: list[int] = []
    for event in events:
        if event["e"] == "PrefixScored":
            assert event["traj"] == asked
        if event["e"] != "TrajEnd" or event["ending"] != "rejected":
            left = None
        elif left is None:
            left = list(rules.pool.evict(view))
            assert left == next(bursts)
            assert len(view.ready) - len(left) >= view.batch
        view(event)
        asked = list(rules.pool.prefixes(view)) or asked
    assert next(bursts, None) is None
    assert len(rejections(events)) > 20
    assert bool(of(events, "PrefixScored")) == (mode in ("keep", "reprefill", "abort")), "else nothing spans versions"


def test_a_run_whose_pool_never_holds_too_much_is_that_of_first_come_first_served(tmp_path: Path) -> None:
    runs = {}
    for name, pool in {"fifo": ("control.pool.name=drop-oldest", "control.pool.capacity=1000"),
                       "pace": (*PACE, "control.pool.target_occupancy=1000")}.items():  # fmt: skip
        _, events = simulate(tmp_path / name, *CROWDED, *pool)
        assert events[0].pop("rules")["pool"] == pool[0].rpartition("=")[2]
        runs[name] = events
    assert runs["pace"] == runs["fifo"]


def test_it_keeps_the_pool_near_its_target(tmp_path: Path) -> None:
    occupancies = {}
    for target in (1.5, 4):
        settings = (*CROWDED, *PACE, f"control.pool.target_occupancy={target}", "max_steps=60")
        _, events = simulate(tmp_path / str(target), *settings)
        view = build_rules(configure(*settings)).view()
        for event in events:
            view(event)
        occupancies[target] = sum(view.pool.occupancies[-30:]) / 30
    assert occupancies[4] - occupancies[1.5] == pytest.approx(2.5 * 4, rel=0.2)


def test_modelled_forgetting_is_the_span_or_has_nothing_to_do_with_it(tmp_path: Path) -> None:
    _, events = simulate(tmp_path / "span", *CROWDED, *PACE)
    span = {e["traj"]: e["versions"][-1][0] - e["versions"][0][0] for e in of(events, "TrajDone")}
    complete = {id: e["version"] for e in of(events, "GroupReady") for id in e["traj"]}
    first = {e["traj"]: e["versions"][0][0] for e in of(events, "TrajDone")}
    for event in of(events, "PrefixScored"):
        for id, forgetting in zip(event["traj"], event["forgetting"], strict=True):
            assert forgetting == complete[id] - first[id] >= span[id] > 0
    _, events = simulate(tmp_path / "independent", *CROWDED, *PACE, "simulation.forgetting=independent")
    found = [x for e in of(events, "PrefixScored") for x in e["forgetting"]]
    assert 0 < min(found) < 0.1 < 0.9 < max(found) < 1
    assert sum(found) / len(found) == pytest.approx(0.5, abs=0.1)


def test_scoring_takes_its_time(tmp_path: Path) -> None:
    """A forward pass over prompts and prefixes, a third of what a step takes for the tokens."""
    _, events = simulate(tmp_path / "run", *CROWDED, *PACE, "simulation.step_token_s=3e-5")
    for event in of(events, "PrefixScored"):
        assert event["t"] - event["start"] == pytest.approx(event["tokens"] * 1e-5, abs=2e-6)


REAL = (
    *SOFT, *PACE, "control.pool.target_occupancy=1", "max_steps=8", "engine.max_num_seqs=16",
    "simulation.decode_base_s=0.3", "simulation.step_base_s=1.5", "simulation.publish_s=0.01",
    "sampling.max_new_tokens=10", "env.name=tests.runtime.dense:Dense",
)  # fmt: skip


def test_a_policy_that_never_moves_has_forgotten_nothing(model: Path, tmp_path: Path) -> None:
    """Engine and learner agree on each prefix token: the right tokens are compared."""
    _, events = rehearse(tmp_path / "run", model, *REAL, "learner.lr=1e-30")
    assert_clean(events)
    found = [x for e in of(events, "PrefixScored") for x in e["forgetting"]]
    assert len(found) > 10
    assert max(found) < 1e-9


@pytest.mark.parametrize("drift", ["decrease", "absolute"])
def test_a_policy_that_learns_moves_away_from_what_it_sampled(drift: str, model: Path, tmp_path: Path) -> None:
    _, events = rehearse(tmp_path / "run", model, *REAL, "learner.lr=0.02", f"control.pool.drift={drift}")
    assert_clean(events)
    assert rejections(events)
    found = [x for e in of(events, "PrefixScored") for x in e["forgetting"]]
    assert max(found) > 1e-3


def shifted(events: list[Event]) -> None:
    event = of(events, "PrefixScored")[3]
    event["version"] += 1


def negative(events: list[Event]) -> None:
    of(events, "PrefixScored")[3]["forgetting"][0] = -0.1


def of_a_running_one(events: list[Event]) -> None:
    at = events.index(of(events, "PrefixScored")[3])
    ready = {id for e in of(events[:at], "GroupReady") for id in e["traj"]}
    running = next(id for e in of(events[:at], "Submitted")[::-1] for id in e["traj"] if id not in ready)
    events[at]["traj"][0] = running


def during_a_step(events: list[Event]) -> None:
    at = events.index(of(events, "PrefixScored")[3])
    step = events.index(next(e for e in events[at:] if e["e"] == "StepStart"))
    event = events[at]
    events.insert(step + 1, {**event, "t": events[step]["t"]})


@pytest.mark.parametrize(
    ("mutate", "says"),
    [
        (shifted, "are scored at version"),
        (negative, "forgetting -0.1"),
        (of_a_running_one, "doesn't wait"),
        (during_a_step, "are scored while step"),
    ],
)
def test_the_checker_sees_scores_that_can_not_be(
    mutate: Callable[[list[Event]], None], says: str, tmp_path: Path
) -> None:
    _, events = simulate(tmp_path / "run", *CROWDED, *PACE)
    assert not check_events(events)
    mutate(events)
    assert any(says in v.message for v in check_events(events))
