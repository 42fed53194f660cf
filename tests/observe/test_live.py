"""The live view: plain lines that a script can parse, a panel on a terminal, little cost."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from counting import calls
from stretto.observe.interval import Interval
from stretto.observe.live import LiveView
from stretto.observe.panel import Shown, render, spark

from .synthetic import synthetic

EVENTS = synthetic(steps=12, seed=1)
LINE = re.compile(
    r"step=(\d+)/12 t=[\d.]+s reward=[\d.-]+ accuracy=[\d.-]+ staleness=([\d.-]+) max=(\d+|-) bound=2 "
    r"tokens_per_s=\d+ idle_learner=[\d.-]+ idle_engine=[\d.-]+ open=\d+ trained=(\d+) rejected=\d+ filtered=\d+ "
    r"failed=\d+ cancelled=\d+ eta=\S+"
)


def show(mode: Any, *, terminal: bool = False, **options: Any) -> str:
    """What the view prints while the events pass, a second of wall clock each."""
    out = io.StringIO()
    clock = iter(range(10**9))
    interval = Interval()
    console = Console(file=out, force_terminal=terminal, width=100)
    with LiveView(mode, 12, lag_bound=2, console=console, wall=lambda: float(next(clock)), **options) as view:
        view.progress("loading the model")
        for event in EVENTS:
            row = interval(event)
            if row is not None:
                view.on_row(row)
            view(event)
    return out.getvalue()


def test_plain_lines_have_a_stable_parsable_form() -> None:
    lines = show("plain").splitlines()
    assert lines[0] == "loading the model"
    found = [m for line in lines if (m := LINE.fullmatch(line))]
    assert len(found) > 10
    assert int(found[-1][1]) == 12
    assert int(found[-1][3]) <= 2
    trained = sum(len(e["traj"]) for e in EVENTS if e["e"] == "StepStart")
    assert int(found[-1][4]) == trained
    assert any(re.fullmatch(r"eval version=\d+ accuracy=\d\.\d{3} n=200", line) for line in lines)


def test_plain_lines_keep_their_distance() -> None:
    assert len(show("plain", every_s=100.0).splitlines()) < len(show("plain", every_s=10.0).splitlines()) / 3


def test_faults_are_shown_above_the_panel_and_as_lines_but_not_when_off() -> None:
    for mode, terminal, shown in (("plain", False, True), ("rich", True, True), ("off", False, False)):
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, width=100)
        with LiveView(mode, 12, lag_bound=2, console=console) as view:
            view({"e": "Fault", "t": 1.0, "where": "learner", "what": "no gradient"})
        assert ("fault at learner: no gradient" in out.getvalue()) == shown


def test_the_panel_shows_progress_staleness_against_its_bound_and_the_ledger() -> None:
    text = show("rich", terminal=True)
    for part in ("step 12/12", "of bound 2", "held out", "submitted:", "idle", "tokens/s"):
        assert part in text


def test_off_is_silent() -> None:
    assert show("off") == ""


def test_auto_is_plain_without_a_terminal() -> None:
    assert LiveView(console=Console(file=io.StringIO())).mode == "plain"
    assert LiveView(console=Console(file=io.StringIO(), force_terminal=True)).mode == "rich"


def test_an_error_in_the_run_closes_the_panel_and_passes() -> None:
    out = io.StringIO()
    view = LiveView("rich", 12, console=Console(file=out, force_terminal=True))

    def run() -> None:
        with view:
            view(EVENTS[0])
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        run()
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back


def test_a_resumed_run_goes_on_counting() -> None:
    cut = next(i for i, e in enumerate(EVENTS) if e["e"] == "StepEnd" and e["step"] == 6) + 1
    view = LiveView("plain", 12, console=Console(file=io.StringIO()))
    for event in EVENTS[:cut]:
        view.recall(event)
    assert view.line().startswith("step=7/12 ")


def test_sparkline_spans_low_to_high() -> None:
    assert spark([0.0, 0.5, 1.0], 10) == "▁▅█" or spark([0.0, 0.5, 1.0], 10) == "▁▄█"
    assert len(spark(list(map(float, range(1000))), 40)) == 40
    assert spark([], 5) == ""
    assert spark([0.3], 5) == "▁"


def test_watching_costs_a_few_calls_an_event_and_a_page_now_and_then() -> None:
    """A page costs thousands of calls: it is drawn as the clock goes, not as events come."""
    events = synthetic(steps=40, prompts_per_step=8, group_size=8, max_num_seqs=128)
    console = Console(file=io.StringIO(), force_terminal=True)
    with LiveView("rich", 40, console=console, wall=lambda: 1.0) as view:
        view(events[0])
        assert calls(lambda: [view(event) for event in events[1:]]) / len(events) < 25


def test_an_evaluation_shows_how_far_it_is_and_what_was_answered() -> None:
    out, clock = io.StringIO(), iter(range(0, 10**9, 3))
    with LiveView("plain", 12, console=Console(file=out, width=200), wall=lambda: float(next(clock))) as view:
        for done in range(5):
            view.working("evaluating version 0", done, 4)
        view.samples(['sample version=0 reward=0: "2+2=" → "5", expected "4"'])
    lines = out.getvalue().splitlines()
    assert any(re.fullmatch(r"t=0\.0s evaluating version 0: [123] of 4, \d+s left", line) for line in lines)
    assert 'sample version=0 reward=0: "2+2=" → "5", expected "4"' in lines


def test_the_panel_uses_the_terminal_that_it_has() -> None:
    shown = Shown(12, 2, virtual=False, rewards=[float(i) for i in range(400)], samples=["what it answered"])
    shown.note({"step": 1, "t": 1.0, "reward/trained/mean": 0.5, "entropy": 1.25, "staleness/mean": 0.5,
                **{f"idle_ratio/{role}": 0.1 for role in ("learner", "engine", "env")}}, 0.0)  # fmt: skip

    def text(width: int, height: int) -> str:
        out = io.StringIO()
        Console(file=out, width=width, height=height).print(render(shown, width, height))
        return out.getvalue()

    def bars(page: str) -> int:
        return sum(c in "▁▂▃▄▅▆▇█" for c in page)

    small, large = text(80, 24), text(200, 50)
    assert bars(large) > 150 > 60 > bars(small)
    assert "entropy" in large
    assert "what it answered" in large
    assert "entropy" not in small


START = {"e": "RunStart", "t": 0.0, "version": 0, "step": 0, "prompts_per_step": 8, "group_size": 4, "max_num_seqs": 16,
         "engines": 1}  # fmt: skip
BEGUN = (
    START,
    {"e": "WorkerUp", "t": 0.5, "worker": "engine-0", "role": "engine"},
    {"e": "Submitted", "t": 1.0, "group": 0, "traj": [0, 1, 2, 3]},
    {"e": "Busy", "t": 2.0, "worker": "engine-0", "tokens": 100, "start": 1.0, "end": 2.0},
    {"e": "Waiting", "t": 31.0, "owner": "the learner", "what": "a batch", "since": 1.0},
    {"e": "Busy", "t": 32.0, "worker": "engine-0", "tokens": 100, "start": 31.0, "end": 32.0},
)


@pytest.mark.parametrize("mode", ["plain", "rich"])
def test_a_long_wait_does_not_silence_the_forecast(mode: Any) -> None:
    out, clock = io.StringIO(), iter(range(0, 10**9, 10))
    console = Console(file=out, force_terminal=mode == "rich", width=80)
    with LiveView(mode, 12, max_new_tokens=4096, console=console, wall=lambda: float(next(clock))) as view:
        for event in BEGUN:
            view(event)
    last = out.getvalue().split("the learner waits for a batch")[-1 if mode == "plain" else -2]
    assert "0 of 32 answers" in last
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|[\s│]+", "", out.getvalue())
    assert "sampling.max_new_tokens(4096)" in shown  # wrapped, not cut


def test_warnings_are_wrapped_and_not_cut() -> None:
    out = io.StringIO()
    shown = Shown(12, 2, virtual=False, warnings=[f"warning: {'long ' * 30}the end"])
    Console(file=out, width=80).print(render(shown, 80, 24))
    assert "the end" in out.getvalue()


def test_time_left_is_reckoned_from_the_last_minute_and_a_halt_makes_it_longer() -> None:
    shown = Shown(1000, 2, virtual=False)
    for step in range(1, 101):  # 10 s a step at first, then 1 s a step
        shown.note({"step": step, "t": 0.0}, 10.0 * min(step, 30) + max(0, step - 30))
    shown.reckon(370.0)
    assert shown.eta_s == pytest.approx(900.0, rel=0.05)
    shown.reckon(370.0 + 600.0)
    assert shown.eta_s is not None
    assert shown.eta_s > 5000


def test_an_evaluation_tells_how_many_answers_have_no_reward_and_a_fault_is_told_once() -> None:
    out = io.StringIO()
    with LiveView("plain", 12, console=Console(file=out, width=200)) as view:
        view({"e": "Eval", "t": 1.0, "version": 0, "accuracy": 0.25, "reward": 0.25, "n": 8, "start": 0.0, "absent": 3})
        for _ in range(2):
            view({"e": "Fault", "t": 1.0, "where": "learner", "what": "no gradient for 5 steps"})
    assert "n=8 (3 of 8 without a reward: they count as 0)" in out.getvalue()
    assert out.getvalue().count("no gradient") == 1


def test_before_the_first_step_there_is_no_line_of_dashes() -> None:
    out, clock = io.StringIO(), iter(range(0, 10**9, 10))
    with LiveView("plain", 12, console=Console(file=out), wall=lambda: float(next(clock))) as view:
        view(START)
    assert "reward=-" not in out.getvalue()


def test_a_resumed_run_shows_no_line_of_dashes_before_its_first_step() -> None:
    out, clock = io.StringIO(), iter(range(0, 10**9, 10))
    cut = next(i for i, e in enumerate(EVENTS) if e["e"] == "StepEnd" and e["step"] == 7) + 1
    with LiveView("plain", 12, console=Console(file=out, width=300), wall=lambda: float(next(clock))) as view:
        for event in EVENTS[:cut]:
            view.recall(event)
        view.progress("starting the learner")
        view({"e": "Resumed", "t": 9.0, "version": 7, "step": 7})
        view({"e": "WorkerUp", "t": 9.5, "worker": "engine-0", "role": "engine"})
        assert out.getvalue() == "starting the learner\n"
        view.on_row({"step": 8, "t": 10.0, "reward/trained/mean": 0.5})
        view({"e": "Busy", "t": 10.0, "worker": "engine-0", "tokens": 1, "start": 9.5, "end": 10.0})
    assert "reward=0.500" in out.getvalue()
