"""What rules that ask see of single trajectories and of an engine's load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.harness import assert_clean, fuzz_case

from stretto.control.actions import RoleChange
from stretto.control.hooks import build_rules
from stretto.control.view import View
from stretto.control.watch import EngineLoad, Phase
from stretto.data.identity import PolicyVersion
from stretto.kernel.errors import InvariantError

from .drive import view_of


def tell(view: View, t: float, name: str, **fields: Any) -> None:
    view({"e": name, "t": t, **fields})


def test_a_trajectory_is_followed_from_its_submission_to_its_end() -> None:
    view = view_of(lag_bound=1, batch=1, size=2, watch=True)
    assert view.loaded("engine-0") == PolicyVersion("policy", 0)
    tell(view, 1.0, "Submitted", group=0, traj=[0, 1], engine="engine-0", version=0)
    one = view.trajectories[0]
    assert (one.group, one.engine, one.phase, one.tokens, one.since) == (0, "engine-0", Phase.QUEUED, 0, 1.0)
    tell(view, 2.0, "FirstToken", engine="engine-0", traj=[0, 1], request=[0, 0])
    assert view.load["engine-0"] == EngineLoad(sampling=2)
    tell(view, 3.0, "EnvStarted", traj=0, what="tool")
    assert (one.phase, one.since, view.t) == (Phase.ENVIRONMENT, 3.0, 3.0)
    tell(view, 4.0, "EnvDone", traj=0, start=3.0, what="tool")
    tell(view, 4.0, "TurnDone", traj=0, start=1.0, tokens=7, versions=[[0, 7]])
    assert (one.phase, one.tokens) == (Phase.QUEUED, 7)
    assert view.load["engine-0"] == EngineLoad(queued=1, sampling=1, tokens=7)
    tell(view, 5.0, "Busy", worker="engine-0", start=1.0, end=5.0, tokens=9, prefill=3, rows=2.0, waiting=4,
         kv_tokens=90)  # fmt: skip
    load = view.load["engine-0"]
    assert (load.waiting, load.kv_tokens, load.preempted, load.told) == (4, 90, None, 5.0)
    tell(view, 6.0, "TrajDone", traj=0, tokens=9)
    assert (one.phase, one.tokens, load.tokens, load.queued) == (Phase.DONE, 9, 0, 0)
    tell(view, 7.0, "EnvDone", traj=0, start=3.0, what="late")
    assert one.phase is Phase.DONE
    tell(view, 8.0, "TrajEnd", traj=[1], ending="failed")
    assert [*view.trajectories] == [0]
    assert load.sampling == 0
    tell(view, 9.0, "WorkerUp", worker="engine-0", role="engine")
    assert load.kv_tokens is None, "what it said before it died"
    tell(view, 9.0, "GroupReady", group=0, version=0)
    tell(view, 9.0, "StepStart", groups=[0], traj=[0])
    tell(view, 9.0, "StepEnd", skipped=False, version=1)
    assert not view.trajectories


def test_who_does_not_ask_is_told_how_to() -> None:
    view = view_of(lag_bound=1, batch=1)
    for read in (lambda: view.trajectories, lambda: view.load):
        with pytest.raises(InvariantError, match="say watches_trajectories = True in its class"):
            read()


class Audit:
    """An elastic rule that compares, at each decision, what it is shown of single trajectories with the rest."""

    watches_trajectories = True

    def __init__(self) -> None:
        self.asked = 0
        self.phases: set[Phase] = set()

    def decide(self, view: View) -> Sequence[RoleChange]:
        self.asked += 1
        running = [t for t in view.trajectories.values() if t.phase is not Phase.DONE]
        self.phases |= {t.phase for t in view.trajectories.values()}
        assert len(view.trajectories) == view.open
        assert {t.id for t in running} == {id for g in view.running.values() for id in g.open}
        assert all(view._elsewhere.get(t.id, view.running[t.group].engine) == t.engine for t in running)
        by_phase = Counter((t.engine, t.phase) for t in running)
        for name, load in view.load.items():
            assert load.queued == by_phase[name, Phase.QUEUED]
            assert load.sampling == by_phase[name, Phase.SAMPLING]
            assert load.environment == by_phase[name, Phase.ENVIRONMENT]
            assert load.tokens == sum(t.tokens for t in running if t.engine == name)
        return []


@pytest.mark.parametrize("seed", range(6))
def test_in_fuzzed_runs_it_agrees_with_the_rest_of_the_view(seed: int, tmp_path: Path) -> None:
    case, audit = fuzz_case(seed, tmp_path), Audit()
    case.rules = replace(build_rules(case.config), elastic=audit)
    assert_clean(case.run())
    assert audit.asked > 10
    assert {Phase.ENVIRONMENT, Phase.DONE} <= audit.phases
