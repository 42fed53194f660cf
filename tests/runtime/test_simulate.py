"""The loop in simulation: what users of other systems suffered does not happen."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ks_2samp

from stretto.control.hooks import build_rules
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Client, Task
from stretto.kernel.errors import ConfigError, DeadlineError, DeadlockError
from stretto.kernel.events import Event
from stretto.observe.checker import check_events
from stretto.observe.metrics import read_metrics
from stretto.run.checks import check
from stretto.runtime.length import run_length
from stretto.simulation.costs import CostModel
from stretto.simulation.env import SimulatedEnvironment

from .harness import Wired, assert_clean, configure, ledger, of, simulate, trained, worst

SMALL = ("prompts_per_step=4", "group_size=2", "engine.max_num_seqs=8", "simulation.prompt_tokens=10",
         "simulation.lengths.kind=lognormal", "simulation.lengths.mean=40", "simulation.lengths.sigma=0.8")  # fmt: skip


@pytest.mark.parametrize("lag_bound", [0, 1, 2, 3, 5])
def test_any_bound_and_any_number_of_steps_ends_within_the_bound(lag_bound: int, tmp_path: Path) -> None:
    for steps in range(1, 6):
        result, events = simulate(
            tmp_path / str(steps), *SMALL, f"lag_bound={lag_bound}", f"max_steps={steps}", "engine.count=2"
        )
        assert_clean(events)
        assert result["steps"] == steps
        assert worst(events) <= lag_bound
        counts = ledger(events)
        assert counts["submitted"] == counts["trained"] == steps * 8


def test_long_rollouts_train_as_often_as_they_are_drawn(tmp_path: Path) -> None:
    """A1: durations spread 100x, nothing rejected, trained lengths follow the distribution of the draw."""
    settings = [
        *SMALL, "lag_bound=2", "max_steps=60", "simulation.lengths.kind=lognormal", "simulation.lengths.sigma=1.1",
        "simulation.lengths.mean=100", "engine.count=2", "engine.max_num_seqs=16",
    ]  # fmt: skip
    result, events = simulate(tmp_path / "run", *settings)
    assert result["ledger"]["rejected"] == 0
    ids = set(trained(events))
    lengths = [e["tokens"] for e in of(events, "TrajDone") if e["traj"] in ids]
    assert max(lengths) > 100 * min(lengths)
    costs = CostModel(configure(*settings).simulation, seed=1234)
    drawn = [costs.length(i, 0) for i in range(4000)]
    assert ks_2samp(lengths, drawn).pvalue > 0.01
    half = len(of(events, "StepStart")) // 2
    early = {t for e in of(events, "StepStart")[:half] for t in e["traj"]}
    done = [(e["traj"] in early, e["tokens"]) for e in of(events, "TrajDone")]
    halves = [[n for first, n in done if first is which] for which in (True, False)]
    assert ks_2samp(*halves).pvalue > 0.01, "the mix of lengths drifts"


@pytest.mark.parametrize("mode", ["keep", "abort"])
def test_every_request_that_samples_has_its_first_token_in_the_log_once(mode: str, tmp_path: Path) -> None:
    _, events = simulate(
        tmp_path / "run", *SMALL, "lag_bound=2", "max_steps=6", "simulation.turns=3", f"control.in_flight={mode}",
        "simulation.env.kind=exponential", "simulation.env.mean=0.5",
    )  # fmt: skip
    assert_clean(events)
    first = [pair for e in of(events, "FirstToken") for pair in zip(e["traj"], e["request"], strict=True)]
    turns = sum(e["turns"] for e in of(events, "TrajDone"))
    assert len(set(first)) == len(first)
    assert len(first) == turns if mode == "keep" else len(first) > turns, "an aborted one goes on as another request"
    begun: dict[int, float] = {}
    for e in events:  # the turn's first token comes before the environment's turn
        if e["e"] == "FirstToken":
            begun |= dict.fromkeys(e["traj"], e["t"])
        elif e["e"] == "EnvStarted":
            assert begun.pop(e["traj"]) <= e["t"]


def test_lower_depth_lowers_mean_staleness_and_leaves_the_bound(tmp_path: Path) -> None:
    """A2."""
    means = []
    for depth in (0, 1, 4):
        result, events = simulate(tmp_path / str(depth), *SMALL, "lag_bound=4", f"depth={depth}", "max_steps=15")
        assert of(events, "RunStart")[0]["lag_bound"] == 4
        assert_clean(events)
        means.append(result["staleness"]["mean"])
    assert means[0] < means[1] < means[2]


def test_generations_that_span_ten_versions_keep_the_bound(tmp_path: Path) -> None:
    """A4: the bound is on the oldest token, interrupted or not."""
    for mode in ("keep", "abort"):
        _, events = simulate(
            tmp_path / mode,
            "prompts_per_step=1",
            "group_size=1",
            "lag_bound=10",
            "max_steps=60",
            "engine.max_num_seqs=32",
            f"control.in_flight={mode}",
            "simulation.lengths.kind=lognormal",
            "simulation.lengths.sigma=1.5",
            "simulation.lengths.mean=100",
            "simulation.step_base_s=0.05",
            "simulation.publish_s=0.01",
        )
        assert_clean(events)
        assert max(e["versions"][-1][0] - e["versions"][0][0] for e in of(events, "TrajDone")) == 10
        assert worst(events) == 10


class OneFast(SimulatedEnvironment):
    """Group 0 answers at once; each later one takes a while."""

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        transcript = client.transcript()
        transcript.observe(task.prompt)
        await client.generate(transcript, max_new_tokens=2)
        await client.sleep(0.0 if task.index else 1e-3, "order")
        return transcript.finish(1.0)


class KeepFirstWaiting:
    """A batch rule that trains group 3 last of the first four."""

    def form(self, view):  # type: ignore[no-untyped-def]
        order = [1, 2, 3, 0, *range(4, 100)]
        wanted = next((g for g in order if g in view.ready or g in view.running), None)
        return [wanted] if wanted in view.ready else None


def test_time_in_the_pool_ages_a_trajectory(tmp_path: Path) -> None:
    """A5: it waits for three updates and shows staleness 3, all of it from waiting."""
    config = configure(
        "prompts_per_step=1", "group_size=1", "lag_bound=3", "max_steps=4", "simulation.step_base_s=100",
        f"control.batch.name={__name__}:KeepFirstWaiting",
    )  # fmt: skip
    events = Wired(config, tmp_path, env=OneFast(CostModel(config.simulation, 0))).run()
    assert_clean(events)
    last = next(e for e in of(events, "StepStart") if e["groups"] == [0])
    assert last["step"] == 3
    assert last["staleness"]["max"] == 3
    assert last["staleness"]["generation"] == 0
    assert last["staleness"]["waiting"] == 3 * last["tokens"]


def test_a_rule_that_breaks_the_bound_is_stopped_at_the_step(tmp_path: Path) -> None:
    """A4: asserted at each step, whatever rule is plugged in."""
    from stretto.kernel.errors import InvariantError

    config = configure(
        "prompts_per_step=1", "group_size=1", "lag_bound=1", "max_steps=4", "simulation.step_base_s=100",
        f"control.batch.name={__name__}:KeepFirstWaiting", f"control.admission.name={__name__}:Plenty",
    )  # fmt: skip
    with pytest.raises(InvariantError, match="lag bound is 1"):
        Wired(config, tmp_path, env=OneFast(CostModel(config.simulation, 0))).run()


class Plenty:
    """Admits four groups at any time."""

    def decide(self, view, version):  # type: ignore[no-untyped-def]
        return 4 - len(view.running) - len(view.ready)


class Nobody:
    """An admission rule that lets nobody in."""

    def decide(self, view, version):  # type: ignore[no-untyped-def]
        return 0


class Never:
    """A batch rule that is never content."""

    def form(self, view):  # type: ignore[no-untyped-def]
        return None


@pytest.mark.parametrize("rule", ["admission=Nobody", "batch=Never"])
def test_a_deadlock_is_reported_at_once_with_who_waits_for_what(rule: str, tmp_path: Path) -> None:
    hook, name = rule.split("=")
    config = configure(*SMALL, "lag_bound=1", "max_steps=2", f"control.{hook}.name={__name__}:{name}")
    wired = Wired(config, tmp_path)
    with pytest.raises(DeadlockError, match="the learner waits for a batch of 4 groups at version 0"):
        wired.run()
    assert wired.events[-1]["e"] == "RunEnd"
    assert wired.events[-1]["t"] < 1000, "at once, not at the deadline"


def batches(events: list[Event]) -> list[int]:
    return [len(e["groups"]) for e in of(events, "StepStart")]


@pytest.mark.parametrize(
    ("tasks", "lag_bound", "more", "expected"),
    [
        (10, 0, (), [4, 4, 2]),
        (10, 2, (), [4, 4, 2]),
        (12, 2, (), [4, 4, 4]),
        (3, 1, (), [3]),
        (9, 3, ("depth=0",), [4, 4, 1]),
        (10, 2, ("order=submission", "simulation.env.kind=exponential", "simulation.env.mean=5"), [4, 4, 2]),
        (10, 2, ("control.in_flight=pin", "engine.count=2"), [4, 4, 2]),
        (10, 2, ("max_steps=2",), [4, 4]),
        (10, 1, ("control.publish.name=every-k", "control.publish.k=2"), [4, 4, 2]),
    ],
)
def test_the_last_batch_is_what_is_left_of_the_data(
    tasks: int, lag_bound: int, more: tuple[str, ...], expected: list[int], tmp_path: Path
) -> None:
    """C4: nothing vanishes, and no batch before the last one is short."""
    config = configure(*SMALL, f"lag_bound={lag_bound}", f"max_steps={math.ceil(tasks / 4)}", *more)
    events = Wired(config, tmp_path, tasks_in_all=tasks).run()
    assert_clean(events)
    assert batches(events) == expected
    assert sorted(g for e in of(events, "StepStart") for g in e["groups"]) == list(range(sum(expected)))
    assert events[-1]["reason"] == "done"
    assert ledger(events)["trained"] == ledger(events)["submitted"] == 2 * sum(expected)
    assert worst(events) <= lag_bound


def test_groups_that_fail_leave_a_shorter_last_batch_and_only_that_one(tmp_path: Path) -> None:
    short = 0
    for seed in range(6):
        config = configure(*SMALL, "lag_bound=2", "max_steps=5", "simulation.failure_probability=0.1", f"seed={seed}",
                           "workers.replace_failed=0", "control.filter.name=zero-variance")  # fmt: skip
        wired = Wired(config, tmp_path / str(seed), tasks_in_all=20)
        events = wired.run()
        assert_clean(events)
        assert set(batches(events)[:-1]) <= {4}
        left = 20 - len({e["group"] for e in of(events, "TrajEnd") if "group" in e})
        assert sum(batches(events)) == left
        short += left % 4 > 0
    assert short


def test_a_short_last_batch_may_be_dropped_and_that_is_said(tmp_path: Path) -> None:
    config = configure(*SMALL, "lag_bound=2", "max_steps=2", "drop_last=true")
    wired = Wired(config, tmp_path, tasks_in_all=10)
    assert batches(wired.run()) == [4, 4]
    said: list[str] = []
    failing = Wired(configure(*SMALL, "lag_bound=2", "max_steps=3", "drop_last=true"), tmp_path, tasks_in_all=10,
                    on_progress=said.append)  # fmt: skip
    events = failing.run()
    assert_clean(events)
    assert (batches(events), events[-1]["reason"]) == ([4, 4], "data exhausted")
    assert ledger(events)["cancelled"] == 2 * 2
    assert said[-1].startswith("2 prompt(s) at the end of the data fill no batch")
    good = Wired(configure(*SMALL, "lag_bound=0", "max_steps=3"), tmp_path, tasks_in_all=10).run()
    for broken in ({"drop_last": True}, {"tasks": 11}):  # a task was still to come
        events = [{**good[0], **broken}, *good[1:]]
        assert any("trains 2 groups" in str(v) for v in check_events(events))


@pytest.mark.parametrize(
    ("epochs", "size", "drop_last", "expected"),
    [(1, 10, False, (3, 10)), (1, 10, True, (2, 10)), (2, 10, False, (5, 20)), (0.29, 100, False, (8, 29)),
     (0.5, 6, False, (1, 3)), (1, 1, False, (1, 1))],
)  # fmt: skip
def test_how_long_a_run_is(epochs: float, size: int, drop_last: bool, expected: tuple[int, int]) -> None:
    config = configure("prompts_per_step=4", f"epochs={epochs}", f"drop_last={str(drop_last).lower()}")
    assert run_length(config, size) == expected


def test_a_filter_that_drops_everything_is_said_and_named_when_the_learner_gives_up(tmp_path: Path) -> None:
    said: list[str] = []
    config = configure(*SMALL, "max_steps=2", "control.filter.name=zero-variance", "simulation.reward_probability=1",
                       "simulation.env.mean=1", "deadlines.batch_s=60")  # fmt: skip
    wired = Wired(config, tmp_path, on_progress=said.append)
    with pytest.raises(DeadlineError, match=r"the last \d\d+ groups were all dropped by control\.filter"):
        wired.run()
    events = wired.events
    faults = [e["what"] for e in of(events, "Fault")]
    assert faults == [line for line in said if "control.filter" in line]
    assert [int(line.split()[0]) for line in faults] == [40]
    assert "dropped by control.filter = 'zero-variance' (all rewards equal)" in faults[0]


def test_simulate_has_no_data_to_end() -> None:
    with pytest.raises(ConfigError, match="epochs = 1: simulate reads no data"):
        check(configure("epochs=1"), "simulate")


def test_a_run_of_no_batch_is_refused() -> None:
    for settings, says in (
        (["epochs=0.05"], r"epochs = 0.05 of 10 tasks is not one task"),
        (["epochs=0.3", "drop_last=true"], "less than one batch of prompts_per_step = 4, and drop_last"),
    ):
        with pytest.raises(ConfigError, match=says):
            run_length(configure("prompts_per_step=4", *settings), 10)
    with pytest.raises(ConfigError, match="epochs = 1: environment 'arithmetic' has no end; use max_steps"):
        run_length(configure("epochs=1"), None)


def test_one_engine_fifty_times_slower_keeps_the_bound_and_does_not_stop_the_others(tmp_path: Path) -> None:
    """D9."""
    for mode in ("keep", "drain", "pin"):
        config = configure(
            *SMALL, "lag_bound=2", "max_steps=20", "engine.count=3", f"control.in_flight={mode}",
            "deadlines.rollout_s=100000", "deadlines.group_s=100000",
        )  # fmt: skip
        events = Wired(config, tmp_path / mode, slow_engine=50.0).run()
        assert_clean(events)
        assert worst(events) <= 2
        held: dict[str, int] = {}
        version = 0
        for event in events:
            if event["e"] == "Loaded":
                held[event["worker"]] = event["version"]
            if event["e"] == "StepEnd":
                version = event["version"]
            if event["e"] == "StepStart" and mode != "drain":
                assert version - min(held.values()) <= 2
        assert {e["engine"] for e in of(events, "Submitted")} == {"engine-0", "engine-1", "engine-2"}


def test_metrics_of_a_step_are_those_of_the_batch_it_trained(tmp_path: Path) -> None:
    """H3, H4: recomputed from the events alone, beside those of everything that completed."""
    _, events = simulate(
        tmp_path / "run", *SMALL, "lag_bound=3", "max_steps=12", "control.filter.name=zero-variance",
        "simulation.failure_probability=0.05",
    )  # fmt: skip
    done = {e["traj"]: e for e in of(events, "TrajDone")}
    rows = read_metrics(tmp_path / "run")
    differ = 0
    before = -math.inf
    for row, start, end in zip(rows, of(events, "StepStart"), of(events, "StepEnd"), strict=True):
        rewards = [done[t]["reward"] for t in start["traj"]]
        assert row["reward/trained/mean"] == pytest.approx(np.mean(rewards))
        assert row["reward/trained/count"] == len(rewards)
        ages = [start["version"] - v for t in start["traj"] for v, n in done[t]["versions"] for _ in range(n)]
        assert row["staleness/mean"] == pytest.approx(np.mean(ages))
        assert row["staleness/max"] == max(ages)
        order = {id(e): i for i, e in enumerate(events)}
        window = [e for e in of(events, "TrajDone") if before < order[id(e)] < order[id(end)]]
        assert row["reward/all/count"] == len(window)
        assert row["reward/all/mean"] == pytest.approx(np.mean([e["reward"] for e in window]))
        differ += row["reward/all/mean"] != row["reward/trained/mean"]
        before = order[id(end)]
    assert differ


def test_order_of_submission_trains_the_same_batches_whatever_completes_first(tmp_path: Path) -> None:
    """H8."""
    orders = []
    for seed, mean in ((0, 0.1), (1, 30.0)):
        _, events = simulate(
            tmp_path / str(seed), *SMALL, "lag_bound=3", "max_steps=8", "order=submission", f"seed={seed}",
            "simulation.env.kind=exponential", f"simulation.env.mean={mean}",
        )  # fmt: skip
        assert_clean(events)
        orders.append([e["groups"] for e in of(events, "StepStart")])
    assert orders[0] == orders[1] == [[4 * s + k for k in range(4)] for s in range(8)]


@pytest.mark.parametrize("seed", range(50, 58))
def test_order_of_submission_keeps_the_bound_when_an_engine_serves_an_older_version(tmp_path: Path, seed: int) -> None:
    _, events = simulate(
        tmp_path / "run",
        "max_steps=30",
        "prompts_per_step=1",
        "group_size=2",
        "engine.count=3",
        "engine.max_num_seqs=3",
        "lag_bound=2",
        "order=submission",
        "control.filter.name=zero-variance",
        "control.in_flight=drain",
        f"seed={seed}",
        "simulation.lengths.kind=lognormal",
        "simulation.lengths.mean=100",
        "simulation.lengths.sigma=1.5",
        "simulation.step_base_s=0.05",
        "simulation.publish_s=0.3",
    )
    assert_clean(events)
    trained = [g for e in of(events, "StepStart") for g in e["groups"]]
    assert trained == sorted(trained)
    assert len(trained) == 30


def test_order_and_a_batch_rule_may_not_contradict_each_other() -> None:
    assert type(build_rules(configure("order=submission")).batch).__name__ == "SubmissionOrder"
    assert type(build_rules(configure("order=submission", "control.batch.name=submission")).batch).__name__ == (
        "SubmissionOrder"
    )
    with pytest.raises(ConfigError, match=r"order = 'submission' and control.batch.name = 'fifo'"):
        build_rules(configure("order=submission", "control.batch.name=fifo"))
    with pytest.raises(ConfigError, match=r"control.batch.name = 'submission' and control.admission.name = 'slots'"):
        build_rules(configure("control.batch.name=submission", "control.admission.name=slots"))
    for settings in (["order=submission"], ["control.batch.name=submission"]):
        assert type(build_rules(configure(*settings)).admission).__name__ == "SubmissionAdmission"


def test_a_drain_ends_when_its_last_rows_are_given_up(tmp_path: Path) -> None:
    """The groups that are open at the end of the run are cancelled while an engine waits for them."""
    _, events = simulate(
        tmp_path / "run", "max_steps=20", "lag_bound=1000", "control.in_flight=drain", "control.admission.name=slots",
        "control.pool.name=drop-oldest", "control.batch.name=fifo", "prompts_per_step=4", "group_size=4",
        "engine.max_num_seqs=64", "simulation.lengths.mean=50",
    )  # fmt: skip
    assert events[-1]["reason"] == "done"
    assert_clean(events)
