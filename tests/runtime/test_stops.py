"""A signal at any moment: the run saves, says how to go on, ends with the right code, and is resumed exactly."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.kernel.events import Event, EventLog, read_events
from stretto.kernel.signals import Interrupted
from stretto.observe.checker import check_events
from stretto.run.launch import launch
from stretto.runtime.manifest import latest

from .harness import configure, of, tiny, trained

SIMULATED = ("max_steps=3", "prompts_per_step=2", "group_size=2", "lag_bound=1", "save_every=2", "engine.count=2")
REHEARSED = ("max_steps=3", "save_every=2", "lag_bound=0", "eval.tasks=2", "eval.every=1", "eval.temperature=1")


@pytest.fixture
def at_event(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """``at_event(matches, number)``: this signal comes at the first event that matches."""
    write = EventLog.write

    def arm(matches: Callable[[int, Event], bool], *numbers: signal.Signals) -> None:
        seen = 0

        def counted(self: EventLog, event: Event) -> None:
            nonlocal seen
            write(self, event)
            if self._file is None:
                return
            seen += 1
            if numbers and matches(seen, event):
                monkeypatch.setattr(EventLog, "write", write)
                for number in numbers:
                    signal.raise_signal(number)

        monkeypatch.setattr(EventLog, "write", counted)

    return arm


def start(out: Path, mode: str, *settings: str, **more: Any) -> dict[str, Any]:
    return launch(configure(f"out={out}", *settings), mode, **more)


def go_on(out: Path, mode: str, *settings: str) -> dict[str, Any]:
    """As ``--resume`` does; whatever the moment was, it works."""
    return launch(configure(f"out={out}", *settings), mode, resume=out)


def assert_whole(events: list[Event], steps: int) -> None:
    """Nothing skipped, nothing twice, every label once."""
    assert not check_events(events)
    assert events[-1]["reason"] == "done"
    assert [e["version"] for e in of(events, "StepEnd")] == list(range(1, steps + 1))
    ids = trained(events)
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("stride", [pytest.param(17, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)])
def test_a_stop_at_any_event_of_a_run_saves_and_the_run_goes_on(
    stride: int, tmp_path: Path, at_event: Callable[..., None]
) -> None:
    """The orchestrator's life from its first event to its last."""
    start(tmp_path / "whole", "simulate", *SIMULATED)
    whole = read_events(tmp_path / "whole" / "events.jsonl")
    for k in range(1, len(whole) + 1, stride):
        out = tmp_path / str(k)
        at_event(lambda seen, event, k=k: seen == k, signal.SIGTERM)
        try:
            result = start(out, "simulate", *SIMULATED)
        except Interrupted:
            assert k == 1, "only before there is a loop"
        else:
            events = read_events(out / "events.jsonl")
            assert result["signal"] == "SIGTERM", k
            assert events[-1]["e"] == "RunEnd"
            assert result["reason"] == events[-1]["reason"]
            assert not check_events(events), k
            assert latest(out / "checkpoints") is not None or not of(events, "StepStart"), k
        go_on(out, "simulate", *SIMULATED)
        events = read_events(out / "events.jsonl")
        assert_whole(events, 3)
        assert sorted(trained(events)) == sorted(trained(whole)), k


MOMENTS: dict[str, Callable[[int, Event], bool]] = {
    "first event": lambda seen, event: seen == 1,
    "start-up": lambda seen, event: event["e"] == "WorkerUp",
    "first publish": lambda seen, event: event["e"] == "Published",
    "first load, then the first evaluation": lambda seen, event: event["e"] == "Loaded",
    "rollout": lambda seen, event: event["e"] == "FirstToken",
    "step": lambda seen, event: event["e"] == "StepStart" and event["step"] == 1,
    "an evaluation on the way": lambda seen, event: event["e"] == "Loaded" and event["version"] == 1,
    "checkpoint": lambda seen, event: event["e"] == "Checkpoint",
    "last evaluation": lambda seen, event: event["e"] == "Loaded" and event["version"] == 3,
    "last event": lambda seen, event: event["e"] == "RunEnd",
}
FAST = ("first load, then the first evaluation", "an evaluation on the way", "last evaluation")


@pytest.fixture(scope="module")
def uninterrupted(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[Event]]:
    out = tmp_path_factory.mktemp("whole") / "run"
    return start(out, "rehearse", *tiny(model), *REHEARSED), read_events(out / "events.jsonl")


@pytest.mark.parametrize("moment", [m if m in FAST else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS])
def test_a_stopped_rehearsal_ends_with_the_weights_and_evaluations_of_one_that_nobody_stopped(
    moment: str, model: Path, tmp_path: Path, at_event: Callable[..., None],
    uninterrupted: tuple[dict[str, Any], list[Event]],
) -> None:  # fmt: skip
    whole, events = uninterrupted
    at_event(MOMENTS[moment], signal.SIGHUP)
    try:
        assert start(tmp_path / "run", "rehearse", *tiny(model), *REHEARSED)["signal"] == "SIGHUP"
    except Interrupted:
        assert moment == "first event", "only before there is a loop"
    result = go_on(tmp_path / "run", "rehearse", *tiny(model), *REHEARSED)
    resumed = read_events(tmp_path / "run" / "events.jsonl")
    assert_whole(resumed, 3)
    assert result["weights_sha256"] == whole["weights_sha256"]
    told = [{key: e[key] for key in ("version", "accuracy", "reward", "n")} for e in of(resumed, "Eval")]
    assert told == [{key: e[key] for key in ("version", "accuracy", "reward", "n")} for e in of(events, "Eval")]


def test_the_second_signal_ends_the_run_at_once_and_the_first_one_names_it(
    tmp_path: Path, at_event: Callable[..., None]
) -> None:
    at_event(lambda seen, event: event["e"] == "StepStart", signal.SIGTERM, signal.SIGINT)
    with pytest.raises(Interrupted, match="SIGTERM") as stopped:
        start(tmp_path / "run", "simulate", *SIMULATED)
    assert stopped.value.exit_code == 143
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert events[-1]["reason"] == "interrupted"
    assert not check_events(events)


def test_what_a_sweep_runs_is_not_saved_for_later(tmp_path: Path, at_event: Callable[..., None]) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    at_event(lambda seen, event: event["e"] == "StepStart", signal.SIGINT)
    try:
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path / "run", "simulate", *SIMULATED, saves=False)
    finally:
        signal.signal(signal.SIGINT, before)
    assert latest(tmp_path / "run" / "checkpoints") is None
