"""Deadlines of equal length share one timer; steps and weight updates have theirs in every mode."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stretto.kernel.clock import VirtualLoop, run_virtual
from stretto.kernel.errors import DeadlineError, DeadlockError
from stretto.kernel.events import read_events
from stretto.kernel.timeout_queue import TimeoutQueue

from .harness import assert_clean, rehearse, simulate
from .runs import start


def test_each_is_late_at_its_own_time_and_those_that_left_never() -> None:
    async def main() -> list[tuple[float, str]]:
        loop, late = asyncio.get_running_loop(), []
        deadlines: TimeoutQueue[str] = TimeoutQueue(loop, 10.0, lambda item: late.append((loop.time(), item)))
        gone = deadlines.add("leaves first")
        await asyncio.sleep(1)
        deadlines.add("a")
        also = deadlines.add("leaves too")
        await asyncio.sleep(2)
        deadlines.add("b")
        deadlines.drop(gone)
        deadlines.drop(also)
        await asyncio.sleep(20)
        deadlines.drop(also)  # once more: nothing happens
        deadlines.add("c")
        await asyncio.sleep(20)
        return late

    assert run_virtual(main(), VirtualLoop()) == [(11.0, "a"), (13.0, "b"), (33.0, "c")]


def test_an_item_may_be_added_while_another_is_late() -> None:
    async def main() -> list[float]:
        loop, late = asyncio.get_running_loop(), []

        def again(item: int) -> None:
            late.append(loop.time())
            if item:
                deadlines.add(item - 1)

        deadlines = TimeoutQueue(loop, 5.0, again)
        deadlines.add(2)
        await asyncio.sleep(100)
        return late

    assert run_virtual(main(), VirtualLoop()) == [5.0, 10.0, 15.0]


def test_nothing_is_scheduled_once_all_have_left() -> None:
    """So that a stuck run is found at once, not at a deadline of what has long ended."""

    async def main() -> None:
        deadlines: TimeoutQueue[str] = TimeoutQueue(asyncio.get_running_loop(), 3600.0, print)
        deadlines.drop(deadlines.add("in time"))
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"at t = 0\.000 s"):
        run_virtual(main(), VirtualLoop())


# --- of the learner and of weight updates, in simulated time and inline ---

RUN = ("prompts_per_step=2", "group_size=2", "engine.max_num_seqs=4", "max_steps=3", "simulation.lengths.mean=20")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            ("deadlines.step_s=0.001", "simulation.step_base_s=0.5"),
            "the loop waited 0.001 s for learner: a learner step",
        ),
        (
            ("deadlines.publish_s=1", "simulation.publish_s=2"),
            "the weight update waited 1 s for engine-0: loading version",
        ),
    ],
)
def test_simulated_durations_meet_the_same_deadlines(settings: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=message):
        simulate(tmp_path / "run", *RUN, *settings)
    events = read_events(tmp_path / "run")
    assert_clean(events)
    assert events[-1]["reason"] == "failed"


@pytest.mark.parametrize("setting", ["deadlines.step_s=0.001", "deadlines.publish_s=0.001"])
def test_a_rehearsal_meets_the_same_deadlines(setting: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=setting.split("=")[0]):
        rehearse(tmp_path / "run", model, "max_steps=2", setting)


def test_a_simulated_step_that_takes_long_and_meets_its_deadline_is_no_news(tmp_path: Path) -> None:
    settings = ("deadlines.warn_s=0.01", "deadlines.step_s=1", "simulation.step_base_s=0.5")
    _, events = simulate(tmp_path / "run", *RUN, *settings)
    assert events[-1]["reason"] == "done"
    assert not [e for e in events if e["e"] == "Waiting" and "step" in e["what"]]


def test_long_drains_count_as_neither_the_learners_step_nor_a_weight_update(tmp_path: Path) -> None:
    """The learner waits to stage a version while an engine is still to load an older one; both settings are far
    shorter."""
    settings = (
        "control.in_flight=drain",
        "lag_bound=3",
        "max_steps=8",
        "engine.count=2",
        "deadlines.step_s=0.6",
        "deadlines.publish_s=0.2",
        "simulation.lengths.mean=2000",
        "simulation.lengths.kind=lognormal",
    )
    _, events = simulate(tmp_path / "run", *RUN, *settings)
    assert_clean(events)
    assert events[-1]["reason"] == "done"
    starts = {e["version"]: e["t"] for e in events if e["e"] == "StepStart"}
    ends = {e["version"] - 1: e["t"] for e in events if e["e"] == "StepEnd"}
    assert max(ends[v] - starts[v] for v in ends) > 5, "no step met a drain: the test shows nothing"


def test_an_inline_step_that_took_too_long_ends_the_run(model: Path, tmp_path: Path) -> None:
    with pytest.raises(DeadlineError, match=r"learner: a learner step; deadlines.step_s is over"):
        start(tmp_path / "run", model, "max_steps=2", "deadlines.step_s=0.0001")
