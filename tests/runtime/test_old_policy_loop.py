"""Old-policy routes in the loop: mixed-version trajectories, exact routes that agree, bubbles on the clock, resumes."""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.kernel.events import Event, read_events
from stretto.pool.old_logprobs import OldLogprobs
from stretto.run.checks import check
from stretto.runtime.workers.inline import InlineLearner

from . import runs
from .dense import Dense
from .harness import assert_clean, configure, of, rehearse, tiny

ENV = (f"env.name={Dense.__module__}:Dense", "simulation.env.kind=lognormal", "simulation.env.mean=0.3")
OLD = ("objective.name=decoupled-ppo", "objective.reference=old", "objective.correction=truncate")
ROUTES = ("recompute", "snapshots", "old_model", "interrupt", "ewma", "proxy")
EXACT = ("snapshots", "old_model", "interrupt")
# generations meet several updates; rollouts are what the learner waits for, and forward passes take no time
MIXED = (
    *ENV,
    *OLD,
    "lag_bound=3",
    "max_steps=6",
    "engine.max_num_seqs=3",
    "simulation.decode_base_s=0.4",
    "simulation.step_base_s=0.1",
    "simulation.publish_s=0.01",
    "simulation.step_token_s=0",
    "sampling.max_new_tokens=10",
    "learner.lr=0.02",
    "learner.micro_batch_tokens=1",
    "control.in_flight=keep",
)


def metric(events: list[Event], name: str) -> list[float]:
    return [e["metrics"][name] for e in of(events, "StepEnd")]


def spans(events: list[Event]) -> int:
    """Versions in the most mixed trajectory."""
    return max(len(e["versions"]) for e in of(events, "TrajDone"))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any]]:
    """Columns of each step and its learner's ``logp_old``, before the update."""
    out: list[tuple[Any, Any]] = []
    step = InlineLearner.step

    async def watched(self: InlineLearner, columns: Any, room: Any) -> Any:
        learner: Any = self._learner
        filled = learner.old.filled

        def filling(batch: Any) -> Any:
            done = filled(batch)
            out.append((columns, None if done.logp_old is None else done.logp_old[done.mask].numpy().copy()))
            return done

        learner.old.filled = filling
        try:
            return await step(self, columns, room)
        finally:
            learner.old.filled = filled

    monkeypatch.setattr(InlineLearner, "step", watched)
    return out


def test_exact_routes_train_the_same_weights_bit_for_bit(
    model: Path, tmp_path: Path, seen: list[tuple[Any, Any]]
) -> None:
    weights, olds = {}, {}
    for route in EXACT:
        seen.clear()
        result, events = rehearse(tmp_path / route, model, *MIXED, f"learner.old_policy.route={route}")
        assert_clean(events)
        assert spans(events) >= 3, "no generation met two updates"
        assert max(len(np.unique(c["versions"][c["mask"]])) for c, _ in seen) >= 3
        weights[route] = result["weights_sha256"]
        olds[route] = [old for _, old in seen]
    for route in EXACT[1:]:
        for a, b in zip(olds[route], olds["snapshots"], strict=True):
            assert np.array_equal(a, b)
    assert len(set(weights.values())) == 1, weights
    assert weights["snapshots"] != ""


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_runs_clean_and_reports_its_cost(route: str, model: Path, tmp_path: Path) -> None:
    """With forward passes that take time."""
    _, events = rehearse(
        tmp_path / "run", model, *MIXED, f"learner.old_policy.route={route}", "simulation.step_token_s=0.003",
        "engine.count=2", "learner.micro_batch_tokens=16384",
    )  # fmt: skip
    assert_clean(events)
    assert len(of(events, "StepEnd")) == 6
    for event in of(events, "StepEnd"):
        assert all(math.isfinite(x) for x in event["metrics"].values())
    memory, passes = metric(events, "old_policy/memory_bytes"), metric(events, "old_policy/passes")
    tokens, stall = metric(events, "old_policy/forward_tokens"), metric(events, "old_policy/stall_s")
    if route in ("proxy", "recompute"):
        assert max(memory) == max(passes) == max(tokens) == max(stall) == 0
    else:
        assert min(memory) > 0
        assert sum(passes) > 0
        assert sum(tokens) > 0
    if route == "snapshots":
        assert memory == [memory[0] * k for k in (1, 2, 3, 3, 3, 3)]
        assert stall == pytest.approx([n * 0.001 for n in tokens])
    trained = {t for e in of(events, "StepStart") for t in e["traj"]}
    done = [e for e in of(events, "TrajDone") if e["traj"] in trained]
    ends = sum(sum(np.cumsum([n for _, n in e["versions"]]) + e["length"] - e["tokens"]) for e in done)
    if route == "snapshots":
        assert sum(tokens) == ends, "each segment's beginning is read once, when it trains"
    elif route in EXACT:
        assert sum(tokens) >= ends, "once each, and also those that never trained"
    if route == "interrupt":
        assert len(set(memory)) == 1
        assert sum(stall) > sum(tokens) * 0.001, "engines wait for one another, too"
    if route == "ewma":
        assert passes == [1.0] * 6
        assert stall == pytest.approx([n * 0.001 for n in tokens])


def test_an_interruption_stops_every_engine_until_it_has_the_new_version(model: Path, tmp_path: Path) -> None:
    """Nothing is sampled between the end of the scored version and the load: no engine computes meanwhile."""
    _, events = rehearse(
        tmp_path / "run", model, *MIXED, "learner.old_policy.route=interrupt", "simulation.step_token_s=0.03",
        "engine.count=2", "simulation.decode_base_s=0.05",
    )  # fmt: skip
    assert_clean(events)
    stalls = metric(events, "old_policy/stall_s")
    assert max(stalls) > 0.2
    ends = [e["t"] for e in of(events, "StepEnd")]
    bubbles = [(end - 0.9 * stall + 0.06, end) for end, stall in zip(ends, stalls, strict=True) if stall > 0.5]
    assert bubbles, "no interruption was long enough to look into"
    for start, end in bubbles:
        for busy in of(events, "Busy"):
            assert busy["end"] <= start + 1e-6 or busy["start"] >= end - 1e-6, (start, end, busy)
    for step, loaded in enumerate(ends, start=1):
        versions = [e["version"] for e in of(events, "Loaded") if e["t"] >= loaded][:2]
        assert versions == [step, step], "both engines load this version next"


@pytest.mark.parametrize("mode", ["keep", "reprefill", "abort"])
def test_every_old_token_is_scored_once_in_each_in_flight_mode(
    mode: str, model: Path, tmp_path: Path, seen: list[tuple[Any, Any]]
) -> None:
    for route in ("interrupt", "old_model"):
        seen.clear()
        _, events = rehearse(
            tmp_path / route, model, *MIXED, f"learner.old_policy.route={route}", "engine.count=2",
            f"control.in_flight={mode}", "simulation.step_token_s=0.002",
        )  # fmt: skip
        assert_clean(events)
        assert spans(events) >= 2
        for version, (columns, _) in enumerate(seen):
            record, sampled = columns["record.logp_old"], columns["mask"]
            scored = ~np.isnan(record)
            assert not (scored & ~sampled).any()
            if route == "interrupt":  # exactly what is older than the step
                assert np.array_equal(scored[sampled], (columns["versions"] < version)[sampled])
        assert any((~np.isnan(c["record.logp_old"])).any() for c, _ in seen)


@pytest.mark.parametrize("mode", ["drain", "pin"])
def test_a_replica_follows_rollouts_that_keep_their_version(mode: str, model: Path, tmp_path: Path) -> None:
    _, events = rehearse(
        tmp_path / "run",
        model,
        *MIXED,
        "learner.old_policy.route=old_model",
        f"control.in_flight={mode}",
        "engine.count=2",
    )
    assert_clean(events)
    assert len(of(events, "StepEnd")) == 6


def test_a_replica_follows_engines_that_load_every_other_version(model: Path, tmp_path: Path) -> None:
    _, events = rehearse(
        tmp_path / "run", model, *MIXED, "learner.old_policy.route=old_model", "control.publish.name=every-k",
        "control.publish.k=2",
    )  # fmt: skip
    assert_clean(events)
    memory = metric(events, "old_policy/memory_bytes")
    assert max(memory) > memory[0], "versions that the engines still serve are kept"


@pytest.mark.parametrize("route", [*EXACT, "ewma"])
def test_a_killed_run_goes_on(route: str, model: Path, tmp_path: Path) -> None:
    """Scores, snapshots and averages are in the checkpoint: nothing old is missing afterwards."""
    out = tmp_path / "run"
    settings = (*OLD, f"learner.old_policy.route={route}", "max_steps=8", "save_every=1", "group_size=4", "lag_bound=3",
                "sampling.max_new_tokens=24", "engine.decode_steps=1", "simulation.step_base_s=0.1")  # fmt: skip
    pid = runs.forked(lambda: runs.start(out, model, *settings, mode="rehearse"), die_at_event=130)
    assert runs.exit_code(pid) == -signal.SIGKILL
    assert runs.go_on(out, mode="rehearse")["steps"] == 8
    runs.assert_clean(out, complete=True)


@pytest.mark.slow
@pytest.mark.parametrize("route", EXACT)
def test_segments_cross_processes(route: str, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = (
        "workers.kind=process",
        "max_steps=6",
        "lag_bound=3",
        "sampling.max_new_tokens=20",
        "engine.max_num_seqs=4",
        "engine.decode_steps=1",
        *OLD,
        f"learner.old_policy.route={route}",
    )
    assert runs.start(out, model, *settings)["steps"] == 6
    runs.assert_clean(out, complete=True)
    steps = of(read_events(out), "StepEnd")
    assert all(e["metrics"]["old_policy/stall_s"] >= 0 for e in steps)
    assert sum(e["metrics"]["old_policy/forward_tokens"] for e in steps) > 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["objective.name=tis", "objective.reference=behavior"], "uses no old log-probabilities"),
        (["control.in_flight=drain"], "control.in_flight = 'drain' keeps the old one"),
        (["control.in_flight=pin"], "set 'keep', 'reprefill' or 'abort', or route = 'old_model'"),
        (["control.publish.name=every-k"], "needs every engine to load every version"),
        (["workers.on_engine_crash=restart"], "can't go with workers.on_engine_crash = 'restart'"),
        (["learner.old_policy.ewma_beta=0.5"], "ewma_beta belongs to route 'ewma'"),
    ],
)
def test_what_cannot_go_with_a_route_is_one_error_before_the_start(model: Path, settings: list[str], says: str) -> None:
    own = [] if settings[0] == "objective.name=tis" else [*OLD]
    if not own:
        settings = settings[:1]
    with pytest.raises(ConfigError) as caught:
        check(configure(*tiny(model), *own, "learner.old_policy.route=interrupt", *settings), "train")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_scores_keep_their_places_and_survive_packing() -> None:
    old_logprobs = OldLogprobs()
    old_logprobs.add(7, np.array([np.nan, -1.0]))
    old_logprobs.add(7, np.array([np.nan, np.nan, np.nan, -2.0]))
    old_logprobs.add(9, np.array([np.nan, -3.0]))
    assert old_logprobs.reach(7) == 4
    assert old_logprobs.reach(8) == 0
    columns = {"trajectory": np.array([9, 7, 8]), "length": np.array([3, 5, 2])}
    want = [np.nan, -3, np.nan, np.nan, -1, np.nan, -2, np.nan, np.nan, np.nan]
    assert np.array_equal(old_logprobs.column(columns), want, equal_nan=True)
    other = OldLogprobs()
    other.restore(old_logprobs.pack(), [7, 8])
    assert other.reach(7) == 4
    assert other.reach(9) == 0
    empty = OldLogprobs()
    empty.restore(OldLogprobs().pack(), [1])
    assert empty.reach(1) == 0
