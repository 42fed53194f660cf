"""A run that fails between taking a batch and the end of its step: every trajectory and token is accounted for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Task
from stretto.kernel.errors import InvariantError, WorkerError
from stretto.runtime import train_loop
from stretto.runtime.workers.inline import InlineLearner
from stretto.simulation.costs import CostModel
from stretto.simulation.env import SimulatedEnvironment

from .harness import Wired, assert_clean, configure, ledger, of

SMALL = ("prompts_per_step=4", "group_size=2", "engine.max_num_seqs=8", "simulation.prompt_tokens=10",
         "simulation.lengths.kind=lognormal", "simulation.lengths.mean=40", "simulation.lengths.sigma=0.8")  # fmt: skip


def test_a_batch_that_breaks_the_bound_ends_the_run_with_a_balanced_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is looked at before the groups leave the pool."""
    look = train_loop._staleness

    def broken(columns: Any, version: int, lag_bound: int) -> dict[str, int]:
        return look(columns, version, lag_bound if version < 3 else -1)

    monkeypatch.setattr(train_loop, "_staleness", broken)
    wired = Wired(configure(*SMALL, "lag_bound=2", "max_steps=10"), tmp_path)
    with pytest.raises(InvariantError, match=r"step 3: a token has staleness \d, the lag bound is -1"):
        wired.run()
    events = wired.events
    assert len(of(events, "StepStart")) == 3
    assert any(e["group_over"] and e["tokens"] for e in of(events, "TrajEnd"))
    assert_clean(events)
    assert ledger(events)["open"] == 0


class Absent(SimulatedEnvironment):
    """One member of each group has no reward."""

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        trajectory = await super().rollout(client, task)
        trajectory.reward = None if client.noise_key % 1000 == 0 else 1.0
        return trajectory


def test_a_learner_that_dies_in_a_step_loses_the_tokens_of_its_batch_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*args: object) -> None:
        args[2].close()  # type: ignore[attr-defined]
        raise WorkerError("the learner died")

    monkeypatch.setattr(InlineLearner, "step", dies)
    config = configure(*SMALL, "group_size=4", "lag_bound=1", "max_steps=3", "workers.replace_failed=0")
    wired = Wired(config, tmp_path, env=Absent(CostModel(config.simulation, 0)))
    with pytest.raises(WorkerError, match="the learner died"):
        wired.run()
    assert len(of(wired.events, "StepStart")) == 1
    assert_clean(wired.events)
    assert ledger(wired.events)["open"] == 0
