"""Ids are counters, through the whole run and its resumptions; what is drawn doesn't hang on them. Roles are said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from stretto.control.actions import RoleChange
from stretto.control.hooks import build_rules
from stretto.control.view import View
from stretto.data.identity import Role
from stretto.kernel.errors import ConfigError
from stretto.kernel.events import read_events
from stretto.kernel.jsonl import read_jsonl
from stretto.kernel.logfile import stream_events
from stretto.observe.checker import check_events
from stretto.observe.report_data import collect

from . import runs
from .harness import Wired, assert_clean, configure, keys, of, rehearse, simulate

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


@pytest.mark.parametrize("name", ["w", "learner"])
def test_a_worker_is_what_it_says_and_not_what_it_is_called(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the view that decides, in checker, metrics, report and timeline."""
    settings = ("prompts_per_step=2", "group_size=2", "lag_bound=1", "max_steps=3", "simulation.env.kind=constant",
                "simulation.env.mean=1")  # fmt: skip
    rows, events = {}, {}
    for called in ("engine-0", name):
        monkeypatch.setattr("stretto.run.workers.engine_names", lambda config, called=called: [called])
        out = tmp_path / called
        _, events[called] = simulate(out, *settings)
        assert_clean(events[called])
        rows[called] = [row for _, row in read_jsonl(out / "metrics.jsonl")]
        data = collect(out, lambda out=out: stream_events(out))  # type: ignore[misc]
        rows[called].append({"idle": data["idle"], "restarts": data["steps"].get("restarts/engine")})
        assert [*data["timeline"]["overview"]["engines"]] == [called]
    assert rows[name] == rows["engine-0"]
    assert len(events[name]) == len(events["engine-0"])


class Passed:
    """The second engine rests while it is down; then it serves again."""

    def decide(self, view: View) -> Sequence[RoleChange]:
        engine = view.engines.get("engine-1")
        if engine is None or (wanted := Role.STANDBY if 2 <= view.version < 5 else Role.ENGINE) is engine.role:
            return []
        return [RoleChange("engine-1", wanted)]


def test_a_dead_engine_whose_role_changes_stays_dead(tmp_path: Path) -> None:
    config = configure("prompts_per_step=4", "group_size=2", "engine.count=2", "engine.max_num_seqs=8", "lag_bound=2",
                       "max_steps=12")  # fmt: skip
    rules = replace(build_rules(config), elastic=Passed())
    whole = Wired(config, tmp_path, rules=rules).run()
    away, back = (e["t"] for e in of(whole, "RoleChanged"))
    dead = away - 1e-3
    events = Wired(config, tmp_path, kills=[(dead, 1, back - away + 1e4)], rules=rules).run()
    assert_clean(events)
    assert [e["role"] for e in of(events, "RoleChanged")] == ["standby", "engine"]
    down = of(events, "WorkerDown")[0]["t"]
    new = [e for e in of(events, "Submitted") if "replaces" not in e]
    assert not [e for e in new if e["engine"] == "engine-1" and e["t"] > down]
    assert not [e for e in of(events, "Loaded") if e["worker"] == "engine-1" and e["t"] > down]
    again = Wired(config, tmp_path, kills=[(dead, 1, (back - away) / 2)], rules=rules).run()
    assert_clean(again)
    up = [e for e in of(again, "WorkerUp") if e["worker"] == "engine-1"]
    assert [e["role"] for e in up] == ["engine", "standby"], "it comes back as what it is for now"
    served = [e["t"] for e in of(again, "Submitted") if e["engine"] == "engine-1"]
    assert not [t for t in served if up[1]["t"] <= t < of(again, "RoleChanged")[1]["t"]]
    assert max(served) > of(again, "RoleChanged")[1]["t"]


def test_a_role_for_an_engine_that_is_not_there_ends_the_run(tmp_path: Path) -> None:
    class Lost:
        def decide(self, view: View) -> Sequence[RoleChange]:
            return [RoleChange("engin-1", Role.STANDBY)]

    config = configure("prompts_per_step=2", "group_size=2", "engine.count=2", "max_steps=2")
    with pytest.raises(ConfigError, match=r"control.elastic changes the role of 'engin-1'; did you mean 'engine-1'"):
        Wired(config, tmp_path, rules=replace(build_rules(config), elastic=Lost())).run()
