"""Late rewards in the loop: rows that come back, the ledger, expiry, failures, resume, and that it learns."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.data.trajectory import Trajectory
from stretto.envs.base import LateClient, Task
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.kernel.events import Event, read_events
from stretto.observe.checker import check_events, check_run
from stretto.observe.interval import Interval
from stretto.run.checks import check, warnings
from stretto.runtime.manifest import load_checkpoint
from stretto.runtime.workers.inline import InlineLearner

from . import runs
from .dense import Dense
from .harness import assert_clean, configure, of, rehearse, tiny, trained

HALF = ("objective.name=rac", "env.slow_share=0.5")
ENV = (f"env.name={Dense.__module__}:Dense", *HALF, "simulation.step_base_s=1", "simulation.publish_s=0.01")
"""A step takes about a second."""
LATE = ("simulation.late.kind=uniform", "simulation.late.low=0.1", "simulation.late.high=6")
LONG = (*ENV, *LATE, "lag_bound=2", "max_steps=12", "objective.lifetime=4")


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The columns of each step, as the learner gets them."""
    seen: list[dict[str, Any]] = []
    step = InlineLearner.step

    async def watched(self: InlineLearner, columns: Any, room: Any) -> Any:
        seen.append(columns)
        return await step(self, columns, room)

    monkeypatch.setattr(InlineLearner, "step", watched)
    return seen


def ends(events: list[Event]) -> dict[str, int]:
    return dict(events[-1]["late"])


def test_rewards_come_back_as_rows_of_their_own_once_and_in_time(
    model: Path, tmp_path: Path, batches: list[dict[str, Any]]
) -> None:
    _, events = rehearse(tmp_path / "run", model, *LONG)
    assert_clean(events)
    counts = ends(events)
    assert counts["promised"] == len(of(events, "LatePending")) == len(of(events, "TrajDone"))
    assert counts["promised"] == counts["in_time"] + counts["returned"] + counts["dropped"]
    assert counts["pending"] == 0
    assert min(counts["in_time"], counts["returned"], counts["dropped"]) > 0
    slow = {e["traj"]: e["reward"] for e in of(events, "LateMatured")}
    fast = {e["traj"]: e["reward"] for e in of(events, "TrajDone")}
    when = {id: e["version"] for e in of(events, "StepStart") for id in e["traj"]}
    came_back: list[int] = []
    for event, columns in zip(of(events, "StepStart"), batches, strict=True):
        late = event.get("late", {"in_time": [], "traj": [], "delay": [], "tokens": 0})
        assert columns["trajectory"].tolist() == [*event["traj"], *late["traj"]]
        assert columns["trained_at"].tolist() == [-1] * len(event["traj"]) + [when[id] for id in late["traj"]]
        assert late["delay"] == [event["version"] - when[id] for id in late["traj"]]
        assert all(1 <= d <= 4 for d in late["delay"])
        used = {*late["in_time"], *late["traj"]}
        for id, a, b in zip(
            columns["trajectory"].tolist(), columns["reward_fast"], columns["reward_slow"], strict=True
        ):
            assert a == fast[id]
            assert (b == slow[id] == 2 * fast[id]) if id in used else np.isnan(b)
        assert int(columns["mask"].sum()) == event["tokens"] + late["tokens"]
        came_back += late["traj"]
    assert len(set(came_back)) == len(came_back) == counts["returned"]
    assert sorted(trained(events)) == sorted(set(trained(events))), "and each trajectory itself trains once"
    steps = of(events, "StepEnd")
    assert max(e["metrics"]["rac/returned_rows"] for e in steps) > 0
    assert [e["metrics"]["late/returned"] for e in steps] == np.cumsum(
        [len(e.get("late", {"traj": []})["traj"]) for e in of(events, "StepStart")]
    ).tolist()
    assert max(e["metrics"].get("rac/delay/mean", 0) for e in steps) >= 1


def test_the_staleness_of_a_step_is_that_of_its_fresh_rows(
    model: Path, tmp_path: Path, batches: list[dict[str, Any]]
) -> None:
    """What comes back may break the bound by its delay, and isn't counted; nor are rewards counted twice."""
    _, events = rehearse(tmp_path / "run", model, *LONG)
    beyond = 0
    rows = Interval().replay(e for e in events if e["e"] != "Eval")
    for event, end, columns, row in zip(of(events, "StepStart"), of(events, "StepEnd"), batches, rows, strict=True):
        age = event["version"] - columns["versions"]
        of_token = np.repeat(np.arange(len(columns["length"])), columns["length"])
        fresh = columns["mask"] & (columns["trained_at"] < 0)[of_token]
        old = columns["mask"] & ~fresh
        assert event["staleness"]["max"] == age[fresh].max() <= 2
        assert event["staleness"]["total"] == age[fresh].sum()
        if old.any():
            beyond = max(beyond, int(age[old].max()))
        assert end["metrics"]["tokens/trained"] == event["tokens"]
        assert row["reward/trained/count"] == len(event["traj"])
        assert "log_ratio/q50@4-7" not in end["metrics"]
    assert 2 < beyond <= 2 + 4


def test_late_rewards_change_what_is_learnt_and_a_seed_repeats_it(model: Path, tmp_path: Path) -> None:
    weights = []
    for name, more in (("a", ()), ("b", ()), ("c", ("objective.alpha=1e-9",))):
        result, _ = rehearse(tmp_path / name, model, *LONG, *more)
        weights.append(result["weights_sha256"])
    assert weights[0] == weights[1] != weights[2]
    assert (tmp_path / "a/events.jsonl.gz").read_bytes() == (tmp_path / "b/events.jsonl.gz").read_bytes()


def test_a_reward_that_is_there_before_its_trajectory_trains_goes_into_its_own_row(model: Path, tmp_path: Path) -> None:
    _, events = rehearse(tmp_path / "run", model, *ENV, "lag_bound=0", "max_steps=4", "simulation.env.mean=1",
                         "simulation.env.kind=uniform", "simulation.env.high=3", "deadlines.group_s=1000")  # fmt: skip
    assert_clean(events)
    counts = ends(events)
    # those that complete last in their batch are asked for in the same instant in which it trains
    assert counts["promised"] == counts["in_time"] + counts["returned"] + counts["dropped"]
    assert counts["in_time"] >= counts["promised"] / 2


def test_without_delay_a_reward_that_replaces_the_fast_one_is_there_from_the_next_step_on(
    model: Path, tmp_path: Path
) -> None:
    _, events = rehearse(tmp_path / "run", model, *ENV, "lag_bound=0", "max_steps=4")
    assert all(d == 1 for e in of(events, "StepStart") for d in e.get("late", {}).get("delay", []))


def test_rewards_beyond_their_lifetime_are_dropped(model: Path, tmp_path: Path) -> None:
    _, events = rehearse(tmp_path / "run", model, *ENV, "lag_bound=1", "max_steps=8", "objective.lifetime=2",
                         "env.slow_delay_s=1e6")  # fmt: skip
    assert_clean(events)
    dropped = [(e["reason"], len(e["traj"])) for e in of(events, "LateDropped")]
    assert {reason for reason, _ in dropped} == {"objective.lifetime = 2 steps", "the run is over"}
    assert ends(events)["dropped"] == ends(events)["promised"] == sum(n for _, n in dropped)
    first = next(e for e in events if e["e"] == "LateDropped")
    started = [e for e in events[: events.index(first)] if e["e"] == "StepStart"]
    assert len(started) == 3, "trained in step 0, it could come back up to step 2"


def test_what_does_not_train_gets_no_late_reward(model: Path, tmp_path: Path) -> None:
    _, events = rehearse(tmp_path / "run", model, *LONG, "control.filter.name=zero-variance", "simulation.env.mean=0.2",
                         "max_steps=6", "objective.lifetime=50")  # fmt: skip
    assert_clean(events)
    lost = {id for e in of(events, "TrajEnd") for id in e["traj"]}
    dropped = {
        id for e in of(events, "LateDropped") if e["reason"] == "its trajectory doesn't train" for id in e["traj"]
    }
    assert dropped
    assert dropped <= lost


@dataclass
class Strange(Dense):
    """Late rewards that don't come: absent, NaN, an exception, or never; by the group."""

    async def late_reward(self, client: LateClient, task: Task, trajectory: Trajectory) -> float | None:
        kind = task.index % 5
        await client.sleep(client.uniform(0), "late reward")
        if kind == 0:
            return None
        if kind == 1:
            return float("nan")
        if kind == 2:
            raise ValueError("no idea")
        if kind == 3:
            await asyncio.get_running_loop().create_future()
        return 1.0


STRANGE = (f"env.name={__name__}:Strange", *HALF, "lag_bound=1", "max_steps=10", "simulation.step_base_s=1")


def test_a_late_reward_that_fails_is_dropped_with_its_reason(model: Path, tmp_path: Path) -> None:
    _, events = rehearse(tmp_path / "run", model, *STRANGE, "deadlines.late_s=3")
    assert_clean(events)
    reasons = {e["reason"] for e in of(events, "LateDropped")}
    expected = (
        r"StrettoError: absent: late_reward of environment \w+ returned None",
        ".*returned nan, which",
        r"ValueError at test_late_rewards\.py:\d+ in late_reward.*: no idea",
        r"timeout: deadlines\.late_s = 3",
    )
    assert all(any(re.match(pattern, reason) for reason in reasons) for pattern in expected), reasons
    assert ends(events)["in_time"] + ends(events)["returned"] > 0


@dataclass
class Broken(Dense):
    async def late_reward(self, client: LateClient, task: Task, trajectory: Trajectory) -> float | None:
        raise ValueError("the judge is away")


def test_when_all_fail_the_run_says_so(model: Path, tmp_path: Path) -> None:
    with pytest.raises(
        StrettoError, match=r"16 late rewards in a row failed; the last one: ValueError at .*: the judge"
    ):
        rehearse(tmp_path / "run", model, f"env.name={__name__}:Broken", *STRANGE[1:], "max_steps=20")
    assert not check_run(tmp_path / "run").violations


def test_an_objective_that_takes_none_is_refused_at_the_start(model: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'reverse' promises rewards that arrive after .* 'tis' takes none: use 'rac'"
    ):
        check(configure("env.name=reverse", "env.slow_share=0.5", "objective.name=tis"))
    assert not [line for line in warnings(check(configure(*tiny(model), *ENV), "rehearse")) if "late" in line]
    assert "promises none" in " ".join(warnings(check(configure("objective.name=rac"), "rehearse")))
    with pytest.raises(ConfigError, match="nothing comes late"):
        check(configure("env.slow_delay_s=1"))
    with pytest.raises(ConfigError, match="slow_share"):
        check(configure("env.slow_share=1.5"))


@dataclass
class Undeclared(Dense):
    promises_late = False  # type: ignore[assignment]


def test_a_skipped_step_takes_its_late_rewards_with_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were in its batch: no trajectory comes back twice, and its fresh ones wait for nothing any more."""
    step, calls = InlineLearner.step, []

    async def poisoned(self: InlineLearner, columns: Any, room: Any) -> Any:
        calls.append(columns)
        if len(calls) == 5:
            monkeypatch.setattr(self._learner, "forward_backward", _infinite(self._learner))
        else:
            monkeypatch.undo()
            monkeypatch.setattr(InlineLearner, "step", poisoned)
        return await step(self, columns, room)

    monkeypatch.setattr(InlineLearner, "step", poisoned)
    _, events = rehearse(tmp_path / "run", model, *LONG, "max_steps=8")
    assert_clean(events)
    (skipped,) = [e for e in of(events, "StepEnd") if e["skipped"]]
    start = [e for e in events[: events.index(skipped)] if e["e"] == "StepStart"][-1]
    (dropped,) = [e for e in of(events, "LateDropped") if e["reason"] == "the step was skipped"]
    assert start["late"]["traj"]
    assert sorted(dropped["traj"]) == sorted([*start["traj"], *start["late"]["traj"]])


def _infinite(learner: Any) -> Any:
    backward = learner.forward_backward

    def poisoned(*args: Any) -> Any:
        out = backward(*args)
        next(p for p in learner.scorer.model.parameters() if p.grad is not None).grad.fill_(np.inf)
        return out

    return poisoned


def test_a_promise_that_nobody_declared_ends_the_run(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="promises a late reward, but the objective takes none"):
        rehearse(tmp_path / "run", model, f"env.name={__name__}:Undeclared", "env.slow_share=0.5",
                 "objective.name=tis", "max_steps=2")  # fmt: skip


def test_resuming_with_pending_rewards_goes_on_bit_for_bit(model: Path, tmp_path: Path) -> None:
    """The checkpoint holds trajectories that wait; they come back in the same steps as without the interruption."""
    settings = (
        *ENV, *LATE, "lag_bound=0", "max_steps=10", "save_every=5", "keep_checkpoints=9", "objective.lifetime=4",
        "simulation.publish_s=0", "simulation.late.kind=lognormal", "simulation.late.mean=2.5",
    )  # fmt: skip
    whole, events = rehearse(tmp_path / "whole", model, *settings)
    rehearse(tmp_path / "cut", model, *settings)
    checkpoint = tmp_path / "cut/checkpoints/step-000005"
    pending = load_checkpoint(checkpoint).late
    assert len([p for p in pending if p.reward is None and p.trained_at >= 0]) > 2
    assert all(p.trajectory.policy_tokens for p in pending)
    again = runs.go_on(tmp_path / "cut", mode="rehearse", checkpoint=checkpoint)
    resumed = read_events(tmp_path / "cut")
    assert_clean(resumed)
    late = [[e.get("late") for e in of(log, "StepStart")] for log in (events, resumed)]
    assert late[0] == late[1]
    assert sum(x is not None for x in late[0][5:]) > 1
    assert again["weights_sha256"] == whole["weights_sha256"]
    assert ends(resumed) == ends(events)


def test_what_had_matured_and_what_had_not_trained_survive_a_checkpoint_too(model: Path, tmp_path: Path) -> None:
    """All kinds in one checkpoint: matured or not, trained, ready, or done in a running group."""
    found = set()
    for lag in (2, 3):
        out = tmp_path / str(lag)
        rehearse(out, model, *LONG, f"lag_bound={lag}", "save_every=1", "keep_checkpoints=99", "group_size=4",
                 "simulation.env.kind=uniform", "simulation.env.high=4")  # fmt: skip
        for path in sorted((out / "checkpoints").iterdir())[:-1]:
            restored = load_checkpoint(path)
            ready = {t.id for g in restored.ready for t in g.trajectories()}
            done = {t.id for g in restored.running for t in g.done}
            for p in restored.late:
                place = "trained" if p.trained_at >= 0 else "ready" if p.trajectory.id in ready else "done"
                assert place != "done" or p.trajectory.id in done
                found.add((place, p.reward is not None))
        middle = sorted((out / "checkpoints").iterdir())[5]
        runs.go_on(out, mode="rehearse", checkpoint=middle)
        assert_clean(read_events(out))
    assert found >= {("trained", False), ("ready", False), ("ready", True), ("done", False)}


def test_worker_processes_get_the_rows_that_come_back(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = ("objective.name=rac", "env.slow_share=0.5", "env.slow_delay_s=0.15", "max_steps=24")
    with runs.train(out, model, *settings) as run:
        code, output = run.end(240)
    assert code == 0, output
    runs.assert_clean(out, complete=True)
    assert ends(run.events)["returned"] > 0


def _swap_late(events: list[Event], name: str, k: int, **fields: Any) -> None:
    of(events, name)[k].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e, s: s["late"]["traj"].append(s["late"]["traj"][0]), "used twice in the step"),
        (lambda e, s: s["late"]["delay"].__setitem__(0, 9), "comes back after 9 steps"),
        (lambda e, s: s["late"].update(tokens=s["late"]["tokens"] + 1), "tokens come back"),
        (lambda e, s: s["late"].update(traj=[], delay=[], tokens=0), "are there and not used"),
        (lambda e, s: s["late"]["in_time"].append(s["traj"][0]), "can't be used"),
        (lambda e, s: e.remove(next(x for x in e if x["e"] == "LateMatured" and x["traj"] in s["late"]["traj"])),
         "can't be used"),
        (lambda e, s: e.remove(next(x for x in e if x["e"] == "LatePending" and x["traj"] in s["late"]["traj"])),
         "waits for no late reward"),
        (lambda e, s: e.insert(e.index(next(x for x in e if x["e"] == "LateMatured")), dict(of(e, "LateMatured")[0])),
         "gets its late reward twice"),
        (lambda e, s: e.remove(of(e, "LateDropped")[-1]), "wait for a late reward at the end"),
        (lambda e, s: e[-1]["late"].update(returned=0), "late rewards: 0 returned"),
        (lambda e, s: e[0].update(late_lifetime=0), "for 1 steps"),
        (lambda e, s: e[0].pop("late_lifetime"), "nobody takes late rewards"),
    ],
)  # fmt: skip
def test_the_checker_sees_what_is_wrong(
    change: Any, message: str, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not _LOG:
        _LOG.extend(rehearse(tmp_path_factory.mktemp("log") / "run", model, *LONG)[1])
    events = json.loads(json.dumps(_LOG))
    step = next(e for e in of(events, "StepStart") if e.get("late", {}).get("traj"))
    change(events, step)
    assert any(message in str(v) for v in check_events(events)), [str(v) for v in check_events(events)][:5]


_LOG: list[Event] = []


@pytest.mark.slow
def test_a_run_whose_whole_reward_comes_late_learns(tmp_path: Path) -> None:
    """``reverse`` with nothing but late rewards: the fast part is 0, so all that is learnt comes back."""
    from stretto.run.launch import launch

    told: dict[str, list[float]] = {}
    for name, alpha in (("rac", 1.0), ("deaf", 1e-9)):
        config = configure(
            f"out={tmp_path / name}", "env.name=reverse", "env.letters=6", "env.length=2", "sft.hidden=32",
            "sft.layers=1", "sft.intermediate=64", "sft.accuracy=0.3", "prompts_per_step=16",
            "group_size=4", "max_steps=80", "objective.name=rac", f"objective.alpha={alpha}", "env.slow_share=1",
            "simulation.late.kind=lognormal", "simulation.late.mean=3", "simulation.step_base_s=1", "learner.lr=2e-3",
            "sampling.max_new_tokens=4", "engine.max_model_len=16", "lag_bound=2",
        )  # fmt: skip
        launch(config, "rehearse")
        result = check_run(tmp_path / name)
        assert not result.violations
        events = read_events(tmp_path / name)
        assert ends(events)["returned"] > 1000
        assert {e["reward"] for e in of(events, "TrajDone")} == {0.0}, "the fast reward tells nothing"
        told[name] = [e["reward"] for e in of(events, "LateMatured")]
    first, last = (float(np.mean(told["rac"][part])) for part in (slice(500), slice(-500, None)))
    assert last > first + 0.2, (first, last)
    assert last > float(np.mean(told["deaf"][-500:])) + 0.2
    print({name: [round(float(np.mean(x)), 3) for x in np.array_split(told[name], 6)] for name in told})
