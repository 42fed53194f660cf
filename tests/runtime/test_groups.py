"""Groups: rollouts that hang or fail, deadlines, replacements."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from stretto.control.hooks import build_rules
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Task
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.runtime.failures import Failures
from stretto.simulation.costs import CostModel
from stretto.simulation.env import SimulatedEnvironment

from .harness import Wired, assert_clean, configure, keys, ledger, of, simulate, trained

SMALL = ("prompts_per_step=4", "group_size=2", "engine.max_num_seqs=8", "simulation.prompt_tokens=10",
         "simulation.lengths.kind=lognormal", "simulation.lengths.mean=40", "simulation.lengths.sigma=0.8")  # fmt: skip


class Stuck(SimulatedEnvironment):
    """Some rollouts never return, named by their noise keys: a thousand times the group, plus the number in it."""

    def __init__(self, costs: CostModel, bad: set[int]) -> None:
        super().__init__(costs)
        self.bad = bad

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        trajectory = await super().rollout(client, task)
        if client.noise_key in self.bad:
            await client.sleep(1e8, "never")
        return trajectory


def test_a_rollout_that_never_returns_fails_at_its_deadline_and_the_step_completes(tmp_path: Path) -> None:
    """B3."""
    config = configure(*SMALL, "group_size=4", "lag_bound=1", "max_steps=2", "deadlines.rollout_s=100")
    events = Wired(config, tmp_path, env=Stuck(CostModel(config.simulation, 0), {2001})).run()
    assert_clean(events)
    assert ledger(events)["failed"] == 1
    (lost,) = of(events, "TrajEnd")
    assert lost["reason"].startswith("timeout")
    start = next(e for e in of(events, "Submitted") if e["group"] == 2)["t"]
    assert lost["t"] == pytest.approx(start + 100)
    assert 2 in [g for e in of(events, "StepStart") for g in e["groups"]], "it trains with the other three"
    assert events[-1]["reason"] == "done"
    over = {(e["traj"], e["what"], e["start"]) for e in of(events, "EnvDone")}
    hangs = [e for e in of(events, "EnvStarted") if (e["traj"], e["what"], e["t"]) not in over]
    key = keys(events)
    assert [(key[e["traj"]], e["what"]) for e in hangs] == [(2001, "never")], "the log tells who hung where"


def test_a_group_closes_at_its_deadline_with_two_valid_members_or_fails_and_another_comes(tmp_path: Path) -> None:
    """B2."""
    config = configure(
        *SMALL, "group_size=4", "lag_bound=1", "max_steps=3", "deadlines.group_s=50", "deadlines.rollout_s=500"
    )
    bad = {1000, 1001, 2000, 2001, 2002}
    events = Wired(config, tmp_path, env=Stuck(CostModel(config.simulation, 0), bad)).run()
    assert_clean(events)
    assert events[-1]["reason"] == "done"
    key = keys(events)
    assert {key[t] for e in of(events, "TrajEnd") for t in e["traj"]} == bad | {2003}
    groups = [g for e in of(events, "StepStart") for g in e["groups"]]
    assert 1 in groups
    assert 2 not in groups
    assert len(groups) == 12, "group 2 was replaced"


def test_members_that_are_late_together_end_before_their_group_is_ready(tmp_path: Path) -> None:
    config = configure(*SMALL, "group_size=4", "lag_bound=1", "max_steps=2", "deadlines.rollout_s=100")
    events = Wired(config, tmp_path, env=Stuck(CostModel(config.simulation, 0), {2000, 2001})).run()
    assert_clean(events)
    ends = [i for i, e in enumerate(events) if e["e"] == "TrajEnd"]
    (ready,) = [i for i, e in enumerate(events) if e["e"] == "GroupReady" and e["group"] == 2]
    key = keys(events)
    assert sorted(key[t] for i in ends for t in events[i]["traj"]) == [2000, 2001]
    assert max(ends) < ready
    assert all(events[i]["reason"].endswith("it waited for its environment") for i in ends)


def test_a_member_that_is_late_is_replaced_while_its_group_has_time(tmp_path: Path) -> None:
    for group_s, expected in ((1000, {2004}), (100, set())):
        config = configure(*SMALL, "group_size=4", "lag_bound=1", "max_steps=2", "deadlines.rollout_s=100",
                           f"deadlines.group_s={group_s}", "control.in_flight=pin")  # fmt: skip
        events = Wired(config, tmp_path, env=Stuck(CostModel(config.simulation, 0), {2001})).run()
        assert_clean(events)
        key = keys(events)
        again = [e for e in of(events, "Submitted") if "replaces" in e]
        assert {key[e["traj"][0]] for e in again if key[e["replaces"]] == 2001} == expected
        assert expected <= {key[t] for t in trained(events)}
    config = configure(*SMALL, "group_size=4", "lag_bound=1", "max_steps=2", "deadlines.rollout_s=100",
                       "workers.replace_failed=1")  # fmt: skip
    bad = {2001, *range(2004, 3000)}
    events = Wired(config, tmp_path, env=Stuck(CostModel(config.simulation, 0), bad)).run()
    assert_clean(events)
    assert len([e for e in of(events, "Submitted") if "replaces" in e]) == 4, "as often as there are members"


def test_a_quota_holds_whole_groups_and_one_that_holds_none_is_refused(tmp_path: Path) -> None:
    config = configure(*SMALL, "group_size=4", "lag_bound=1", "max_steps=3", "control.quota.trajectories=6")
    events = Wired(config, tmp_path).run()
    assert_clean(events)
    running = most = 0
    for event in events:
        running += len(event["traj"]) if event["e"] == "Submitted" else -(event["e"] == "TrajDone")
        most = max(most, running)
    assert most == 6
    with pytest.raises(ConfigError, match=r"quota\.trajectories = 2 is less than group_size = 4"):
        build_rules(configure("group_size=4", "control.quota.trajectories=2"))


def test_a_stalled_engine_is_named_by_what_ends_and_by_the_run_that_ends(tmp_path: Path) -> None:
    """What SIGSTOP of an engine does: the environment waits for its answers."""
    config = configure(
        *SMALL,
        "lag_bound=0",
        "max_steps=2",
        "deadlines.rollout_s=10",
        "simulation.lengths.kind=constant",
        "simulation.lengths.mean=1e6",
    )
    wired = Wired(config, tmp_path)
    with pytest.raises(StrettoError, match=r"(\d+) x timeout: deadlines.rollout_s = 10; it waited for engine-0\. Each"):
        wired.run()
    assert_clean(wired.events)


def test_when_everything_hangs_the_run_ends_with_the_reason(tmp_path: Path) -> None:
    """B2, B3: the same task can't wedge the run for ever."""
    config = configure(*SMALL, "lag_bound=0", "max_steps=2", "deadlines.rollout_s=10")
    wired = Wired(config, tmp_path, env=Stuck(CostModel(config.simulation, 0), set(range(10**6))))
    with pytest.raises(StrettoError, match="groups in a row failed"):
        wired.run()
    assert_clean(wired.events)
    assert wired.events[-1]["reason"] == "failed"
    assert wired.events[-1]["ledger"]["open"] == 0


def test_a_twentieth_of_failures_loses_almost_no_good_trajectory(tmp_path: Path) -> None:
    """F8: the failed member is replaced; its group stays whole."""
    _, events = simulate(
        tmp_path / "run", "prompts_per_step=8", "group_size=8", "lag_bound=1", "max_steps=15",
        "simulation.failure_probability=0.05",
    )  # fmt: skip
    assert_clean(events)
    done = {e["traj"] for e in of(events, "TrajDone")}
    good = done - set(trained(events))
    assert len(of(events, "TrajDone")) > 900
    assert len(good) < 0.01 * len(done)
    failed = [e for e in of(events, "TrajEnd") if e["ending"] == "failed"]
    assert sum(len(e["traj"]) for e in failed) > 20
    assert all(e["reason"] == "SimulatedFailure: simulation.failure_probability" for e in failed), "F9: with its reason"


def test_groups_of_which_all_failed_end_the_run(tmp_path: Path) -> None:
    """F9."""
    with pytest.raises(StrettoError, match=r"groups in a row failed; the last: .* valid members") as caught:
        simulate(tmp_path / "run", *SMALL, "lag_bound=1", "max_steps=2", "simulation.failure_probability=0.98")
    assert re.search(r"failed: \d+ x SimulatedFailure: simulation.failure_probability\.", str(caught.value))


class Various(SimulatedEnvironment):
    """Each rollout fails in its own way, most of them in the same one."""

    kinds = itertools.cycle((KeyError, ValueError, TypeError, LookupError))

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        await super().rollout(client, task)
        number = client.noise_key
        if number % 2:
            raise RuntimeError("the grader is down")
        raise next(self.kinds)(f"lost {number}")


def test_the_most_frequent_reasons_come_first_and_the_others_are_counted(tmp_path: Path) -> None:
    config = configure(*SMALL, "lag_bound=0", "max_steps=2", "workers.replace_failed=0")
    with pytest.raises(StrettoError) as caught:
        Wired(config, tmp_path, env=Various(CostModel(config.simulation, 0))).run()
    raised = r"Error at test_groups\.py:\d+ in rollout"
    assert re.search(rf"failed: 4 x Runtime{raised}: the grader is down; .*; 1 x something else\.", str(caught.value))


class Odd(SimulatedEnvironment):
    """Its rewards are no numbers."""

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        trajectory = await super().rollout(client, task)
        trajectory.reward = (float("nan"), "1", 1j, [1.0])[client.noise_key % 4]  # type: ignore[assignment]
        return trajectory


def test_what_an_environment_gives_instead_of_a_reward_is_named_with_its_count(tmp_path: Path) -> None:
    config = configure(*SMALL, "lag_bound=0", "max_steps=2", "group_size=4", "workers.replace_failed=0")
    wired = Wired(config, tmp_path, env=Odd(CostModel(config.simulation, 0)))
    with pytest.raises(StrettoError, match=r"4 x environment Odd returned (nan|a list|a complex|'1')"):
        wired.run()
    assert_clean(wired.events)
    assert {e["reason"].partition(",")[0] for e in of(wired.events, "TrajEnd") if not e.get("group_over")} == {
        "environment Odd returned nan", "environment Odd returned '1'", "environment Odd returned a complex",
        "environment Odd returned a list",
    }  # fmt: skip


def test_the_first_traceback_from_each_place_is_written_once(tmp_path: Path) -> None:
    failures = Failures(tmp_path)
    for number in range(3):
        try:
            raise RuntimeError(f"lost {number}")
        except RuntimeError as error:
            reason = failures.reason(error)
    assert re.fullmatch(
        r"RuntimeError at test_groups\.py:\d+ in test_the_first_\w+ \(traceback: logs/tracebacks\.txt\): lost 2", reason
    )
    text = (tmp_path / "logs" / "tracebacks.txt").read_text()
    assert "RuntimeError: lost 0" in text
    assert "lost 1" not in text
    assert failures.reason(StrettoError("ours")) == "StrettoError: ours"
