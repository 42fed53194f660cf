"""report.html: self-contained, bounded in size, true to the log, whatever state the run is in."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stretto.data.trajectory import Completion, Transcript
from stretto.kernel.errors import DataError
from stretto.observe import report_data
from stretto.observe.bounded import Curves, Thinned
from stretto.observe.report import write_report
from stretto.observe.report_data import MAX_POINTS, SAMPLE_STEPS, SAMPLES_PER_STEP
from stretto.observe.samples import read_samples, sample_of, sample_steps, write_samples
from stretto.observe.summary import summarize
from stretto.observe.timeline import MAX_ENGINES, MAX_SPANS, Activity, Extent, Lane, Timeline

from .demo import write_run
from .synthetic import Event, synthetic

EVENTS = synthetic(steps=30, seed=2, turns=2, engines=2, skip_at=(4,))


def data_of(path: Path) -> dict[str, Any]:
    """The data block of a page, as a browser reads it."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', path.read_text(), re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1], parse_constant=lambda name: pytest.fail(f"{name} isn't JSON"))
    return data


def test_the_page_needs_no_network(tmp_path: Path) -> None:
    page = write_report(write_run(tmp_path / "run", EVENTS)).read_text()
    assert "%%" not in page
    without_namespace = page.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|<link|src=|@import|fetch\(|XMLHttpRequest", without_namespace)


def test_the_figures_are_those_of_the_log(tmp_path: Path) -> None:
    data = data_of(write_report(write_run(tmp_path, EVENTS)))
    summary = summarize(EVENTS)
    assert {name: count for name, (count, _) in data["ledger"].items()} == summary["ledger"]
    assert data["summary"]["staleness"] == summary["staleness"]
    starts = [e for e in EVENTS if e["e"] == "StepStart"]
    trained = sum(n for _, n in data["staleness"])
    assert trained == data["ledger"]["trained"][1]
    assert data["steps"]["staleness/max"] == [e["staleness"]["max"] for e in starts]
    assert [e[2] for e in data["evals"]] == [e["accuracy"] for e in EVENTS if e["e"] == "Eval"]
    assert sum(n for _, _, n in data["reasons"]) == sum(len(e["traj"]) for e in EVENTS if e["e"] == "TrajEnd")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_hardly_any_steps_has_a_report(tmp_path: Path, steps: int) -> None:
    data = data_of(write_report(write_run(tmp_path, synthetic(steps=steps))))
    assert data["summary"]["steps"] == steps


@pytest.mark.parametrize("end", [0, 1, 40, 400])
def test_a_crashed_run_has_a_report_that_says_so(tmp_path: Path, end: int) -> None:
    run = write_run(tmp_path, EVENTS[:end], rollouts=False)
    with open(run / "events.jsonl", "ab") as file:
        file.write(b'{"e":"TrajDone","t":')
    data = data_of(write_report(run))
    assert data["summary"]["complete"] is False
    assert data["samples"] == []


def test_no_log_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no events\.jsonl"):
        write_report(tmp_path)


def test_size_does_not_grow_with_the_run(tmp_path: Path) -> None:
    events = synthetic(steps=700, prompts_per_step=2, group_size=2, engines=2)
    path = write_report(write_run(tmp_path, events))
    data = data_of(path)
    assert path.stat().st_size < 1_000_000
    assert len(data["steps"]["step"]) <= MAX_POINTS
    assert len(data["samples"]) <= SAMPLE_STEPS * SAMPLES_PER_STEP
    assert data["steps"]["step"][-1] == 700


def test_text_of_a_run_can_not_break_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script> %%DATA%% <b>&"
    run = write_run(tmp_path, synthetic(steps=2), config=evil)
    write_samples(run, 0, [{"step": 0, "version": 0, "trajectory": 1, "group": 0, "reward": None, "advantage": None,
                            "pieces": [{"text": evil, "mask": False}]}])  # fmt: skip
    path = write_report(run)
    page = path.read_text()
    assert page.count("<script") == 2
    assert "&lt;b&gt;&amp;" in page
    assert any(s["pieces"][0]["text"] == evil for s in data_of(path)["samples"])


def test_downsampling_keeps_maxima_and_the_last_step() -> None:
    rows = [{"step": k, "staleness/max": int(k == 501), "reward/all/mean": float(k % 2), "x": float("nan")}
            for k in range(1001)]  # fmt: skip
    curves = Curves(points=10)
    for row in rows:
        curves.add(row)
    columns = curves.columns()
    assert 5 < len(columns["step"]) <= 10
    assert (columns["step"][-1], max(v or 0 for v in columns["staleness/max"])) == (1000, 1)
    assert columns["reward/all/mean"][0] == pytest.approx(0.5, abs=0.01)
    assert set(columns["x"]) == {None}


def test_mean_activity_of_a_lane() -> None:
    lane = Lane()
    lane.add(0.0, 2.0)
    lane.add(1.0, 2.0)
    assert lane.mean_active(np.array([0.0, 1.0, 2.0, 4.0])).tolist() == pytest.approx([1.0, 2.0, 0.0])


def timeline_of(events: list[Event], times: list[float] = []) -> Timeline:  # noqa: B006
    extent = Extent()
    for event in events:
        extent(event)
    timeline = Timeline(extent, times)
    for event in events:
        timeline(event)
    return timeline


def test_a_timeline_of_many_engines_stays_small() -> None:
    up = [{"e": "WorkerUp", "t": 0.0, "worker": f"engine-{k}", "role": "engine"} for k in range(50)]
    events = [{"e": "Busy", "t": k / 100 + 0.5, "worker": f"engine-{k % 50}", "start": k / 100, "end": k / 100 + 0.5,
               "rows": 3.0} for k in range(40_000)]  # fmt: skip
    data = timeline_of([*up, *events]).data()
    assert len(data["overview"]["engines"]) == MAX_ENGINES + 1
    assert data["shown"] == "6 of 50 engines"
    for window in data["windows"]:
        assert sum(map(len, window["engines"].values())) <= MAX_SPANS


def transcript() -> Transcript:
    record = Transcript(trajectory=7, group=3)
    record.observe([1, 2])
    logp = np.array([-0.5, -0.25], np.float32)
    record.sample(Completion(np.array([3, 4], np.int32), logp, np.zeros(2), np.array([5, 6], np.int32), "stop"))
    record.observe([9])
    return record


def test_a_sample_keeps_text_version_logp_and_ratio_per_token(tmp_path: Path) -> None:
    sample = sample_of(
        transcript().finish(1.0), step=8, version=8, decode=lambda ids: "".join(f"<{i}>" for i in ids),
        ratio=np.array([1.0, 1.0, 1.25, np.nan, 1.0]), advantage=0.5,
    )  # fmt: skip
    write_samples(tmp_path, 8, [sample])
    (read,) = read_samples(tmp_path, 8)
    assert read == sample
    assert read["pieces"] == [
        {"text": "<1><2>", "mask": False},
        {"text": "<3>", "mask": True, "id": 3, "version": 5, "logprob": -0.5, "ratio": 1.25},
        {"text": "<4>", "mask": True, "id": 4, "version": 6, "logprob": -0.25, "ratio": None},
        {"text": "<9>", "mask": False},
    ]


def test_samples_of_a_repeated_step_replace_the_old_ones(tmp_path: Path) -> None:
    for reward in (0.0, 1.0):
        write_samples(tmp_path, 2, [{"step": 2, "reward": reward}])
    assert sample_steps(tmp_path) == [2]
    assert [s["reward"] for s in read_samples(tmp_path, 2)] == [1.0]
    with pytest.raises(DataError, match=r"no samples of step 3; there are \[2\]"):
        read_samples(tmp_path, 3)


def test_a_torn_sample_is_dropped_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    path = write_samples(tmp_path, 1, [{"step": 1}])
    path.write_bytes(path.read_bytes() + b'{"step":')
    assert read_samples(tmp_path, 1) == [{"step": 1}]
    path.write_bytes(b'{"step":\n{"step": 1}\n')
    with pytest.raises(DataError, match=r"step-000001\.jsonl:1: not JSON"):
        read_samples(tmp_path, 1)


def test_idle_shares_count_work_that_was_reported_after_the_step() -> None:
    events: list[Event] = [
        {"e": "RunStart", "t": 0.0},
        {"e": "WorkerUp", "t": 0.0, "worker": "w", "role": "engine"},
        {"e": "WorkerUp", "t": 0.0, "worker": "engine-0", "role": "learner"},
        {"e": "EnvDone", "t": 2.0, "start": 1.0},
        {"e": "EnvDone", "t": 2.0, "start": 0.5},
        {"e": "Busy", "t": 9.0, "worker": "w", "start": 1.0, "end": 6.0, "rows": 2.0},
        {"e": "Busy", "t": 9.0, "worker": "engine-0", "start": 0.0, "end": 8.0, "rows": 2.0},
    ]
    idle = timeline_of(events, [2.0, 4.0, 8.0]).idle()
    assert idle == {"learner": [1.0, 1.0, 1.0], "engine": [0.5, 0.0, 0.5], "env": [0.25, 1.0, 1.0]}


@pytest.mark.parametrize("union", [False, True])
def test_activity_of_many_spans_is_that_of_all_at_once(union: bool) -> None:
    draw = np.random.default_rng(0)
    ends = np.sort(draw.uniform(0, 100, 20_000))
    starts = ends - draw.exponential(0.004, ends.size)
    starts[::1000] -= 3  # a few reach far back
    activity = Activity(np.linspace(0, 100, 51), union)
    for start, end in zip(starts, ends, strict=True):
        activity.add(start, end)
    fine = np.linspace(0, 100, 100_001)
    active = np.zeros(100_000)
    for start, end in zip(starts, ends, strict=True):
        low, high = np.searchsorted(fine, [start, end])
        active[max(0, low) : high] += 1
    exact = (np.minimum(active, 1) if union else active).reshape(50, -1).mean(1)
    assert np.abs(activity.mean() - exact).max() < 0.02
    assert len(activity._start) <= 4096


def test_of_many_items_evenly_spread_ones_are_kept_and_the_last() -> None:
    for count in (1, 8, 9, 16, 1000):
        kept: Thinned[int] = Thinned(8)
        for item in range(count):
            kept.add(item)
        assert [*kept] == sorted({*range(0, count, kept.stride), *range(count - 1, count)})
        assert len([*kept]) <= 9


def run_of(steps: int) -> Iterator[Event]:
    """Something new to tell at each step."""
    yield {"e": "RunStart", "t": 0.0, "version": 0, "step": 0}
    yield {"e": "WorkerUp", "t": 0.0, "worker": "engine-0", "role": "engine"}
    for k in range(steps):
        t = float(k)
        yield {"e": "Busy", "t": t, "worker": "engine-0", "start": t - 0.5, "end": t, "rows": 1.0}
        yield {"e": "EnvDone", "t": t, "start": t - 0.1}
        yield {"e": "TrajEnd", "t": t, "traj": [k], "ending": "failed", "reason": f"no {k}", "tokens": 1}
        yield {"e": "Fault", "t": t, "where": "here", "what": f"no {k}"}
        yield {"e": "Waiting", "t": t, "owner": "engine-0", "what": f"version {k}", "since": 0.0}
        yield {"e": "Waiting", "t": t, "owner": f"group {k}", "what": "an answer", "since": 0.0}
        yield {"e": "StepStart", "t": t, "version": k, "step": k, "traj": [], "groups": [], "tokens": 1,
               "staleness": {"total": 0, "max": 0, "generation": 0, "waiting": 0}}  # fmt: skip
        yield {"e": "StepEnd", "t": t + 0.5, "version": k + 1, "step": k, "skipped": False, "metrics": {"loss": 0.5}}
        yield {"e": "Loaded", "t": t + 0.6, "worker": "engine-0", "version": k, "start": t}
        yield {"e": "Eval", "t": t + 0.7, "version": k, "accuracy": 0.5, "reward": 0.5, "n": 9, "start": t}


def test_what_the_report_keeps_does_not_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("report_data.MAX_POINTS", "report_data.MAX_EVALS", "report_data.MAX_WAITS", "timeline._STARTS",
                  "timeline._HELD", "bounded.MAX_REASONS"):  # fmt: skip
        monkeypatch.setattr(f"stretto.observe.{limit}", 20)
    kept: dict[str, list[int]] = {}
    for part, method in ((report_data.Gathered, "data"), (Extent, "windows"), (Timeline, "data")):
        monkeypatch.setattr(part, method, sized(getattr(part, method), kept.setdefault(part.__name__, [])))
    for steps in (60, 1200):
        data = report_data.collect(Path("nowhere"), lambda steps=steps: run_of(steps))  # type: ignore[misc]
        assert (data["fault_count"], data["step_count"], len(data["faults"])) == (steps, steps, report_data.MAX_FAULTS)
        assert data["steps"]["step"][-1] == data["evals"][-1][0] == steps
        assert data["waits"][0] == ["engine-0", f"version {steps - 1}", steps, steps - 1]
    for short, long in kept.values():
        assert long < 1.2 * short + 500, kept


def sized(method: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    """The method, that notes how much its object holds."""

    def call(self: Any, *arguments: Any) -> Any:
        sizes.append(len(pickle.dumps(self)))
        return method(self, *arguments)

    return call
