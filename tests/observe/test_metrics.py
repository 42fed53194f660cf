"""Metrics are a function of the event log: exact, per shipped batch, continued at resume."""

from __future__ import annotations

import builtins
import subprocess
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from counting import calls
from stretto.config import RunConfig
from stretto.kernel.errors import ConfigError
from stretto.observe.interval import Interval
from stretto.observe.metrics import MetricsWriter, read_metrics
from stretto.observe.summary import Figures, summarize
from stretto.observe.tally import ENDINGS, Tally, percentile
from stretto.observe.times import Spans
from stretto.observe.trackers import TensorBoard, make_trackers

from .synthetic import Event, synthetic

EVENTS = synthetic(steps=12, seed=1, skip_at=(4,), turns=3)


def write(run_dir: Path, events: list[Event], history: Sequence[Event] = (), **options: Any) -> MetricsWriter:
    figures = Figures()
    for event in history:
        figures(event)
    writer = MetricsWriter(run_dir, figures=figures, **options)
    for event in events:
        writer(event)
    writer.close()
    return writer


def step_rows(run_dir: Path) -> list[dict[str, Any]]:
    return [row for row in read_metrics(run_dir) if "eval/accuracy" not in row]


def test_one_row_per_step_and_one_per_evaluation(tmp_path: Path) -> None:
    write(tmp_path, EVENTS)
    rows = read_metrics(tmp_path)
    assert [r["step"] for r in step_rows(tmp_path)] == [1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert [r["update/skipped"] for r in step_rows(tmp_path)][3:6] == [0, 1, 0]
    assert sum("eval/accuracy" in r for r in rows) == sum(e["e"] == "Eval" for e in EVENTS)


def test_recomputing_from_the_log_gives_the_same_rows(tmp_path: Path) -> None:
    """H4: metrics describe what was trained, because they come from the log alone."""
    write(tmp_path, EVENTS)
    assert Interval().replay(EVENTS) == read_metrics(tmp_path)


def test_trained_reward_is_of_the_shipped_batch_and_all_of_what_completed(tmp_path: Path) -> None:
    """H3, H4: both cohorts, each with its count."""
    write(tmp_path, EVENTS)
    done = {e["traj"]: e for e in EVENTS if e["e"] == "TrajDone"}
    starts = [e for e in EVENTS if e["e"] == "StepStart"]
    since = 0.0
    for row, start in zip(step_rows(tmp_path), starts, strict=True):
        rewards = [done[i]["reward"] for i in start["traj"]]
        assert row["reward/trained/count"] == len(rewards)
        assert row["reward/trained/mean"] == pytest.approx(sum(rewards) / len(rewards))
        meanwhile = [e["reward"] for e in done.values() if since < e["t"] <= row["t"] and e["reward"] is not None]
        assert row["reward/all/count"] == len(meanwhile)
        assert row["reward/all/mean"] == pytest.approx(sum(meanwhile) / len(meanwhile))
        since = row["t"]


def test_staleness_splits_exactly_and_keeps_the_bound(tmp_path: Path) -> None:
    write(tmp_path, EVENTS)
    for row in step_rows(tmp_path):
        assert row["staleness/mean"] == pytest.approx(row["staleness/generation"] + row["staleness/waiting"])
        assert row["staleness/mean"] <= row["staleness/p95"] <= row["staleness/max"] <= 2


def test_ledger_balances_in_trajectories_and_tokens_at_every_event() -> None:
    """A8: submitted = sum of the rest, at each event."""
    tally = Tally()
    for event in EVENTS:
        tally(event)
        ledger = tally.ledger()
        for part in (0, 1):
            assert ledger["submitted"][part] == sum(ledger[name][part] for name in (*ENDINGS, "open"))
        assert 0 <= tally.in_flight <= tally.open
    assert {name: count for name, (count, _) in tally.ledger().items()} == EVENTS[-1]["ledger"]


def test_an_ended_trajectory_is_forgotten() -> None:
    tally = Tally()
    for event in EVENTS:
        tally(event)
    assert (tally.done, tally.ready, tally.group_of, tally.done_tokens) == ({}, {}, {}, 0)


def test_zero_variance_is_judged_on_raw_valid_rewards_of_groups_of_two_or_more() -> None:
    """F2."""

    def done(id: int, group: int, reward: float | None) -> Event:
        return {"e": "TrajDone", "t": 1.0, "traj": id, "group": group, "start": 0.0, "tokens": 1, "length": 1,
                "versions": [[0, 1]], "turns": 1, "reward": reward, "finish": "stop", "terminated": True,
                "truncated": False}  # fmt: skip

    groups: dict[int, list[float | None]] = {0: [1.0, 1.0], 1: [1.0, 0.0, None], 2: [1.0], 3: [None, 1.0]}
    tally, id = Tally(), 0
    tally(EVENTS[0])
    all_ids = []
    for group, rewards in groups.items():
        ids = list(range(id, id + len(rewards)))
        id += len(rewards)
        all_ids += ids
        tally({"e": "Submitted", "t": 0.0, "group": group, "task": 0, "traj": ids, "engine": "e", "version": 0})
        for i, reward in zip(ids, rewards, strict=True):
            tally(done(i, group, reward))
        tally({"e": "GroupReady", "t": 1.0, "group": group, "version": 0, "traj": ids, "tokens": len(ids)})
    tally({"e": "StepStart", "t": 2.0, "step": 1, "version": 0, "groups": [0, 1, 2, 3], "traj": all_ids, "tokens": 8,
           "staleness": {"total": 0, "generation": 0, "waiting": 0, "max": 0}})  # fmt: skip
    assert tally.batch["group/zero_variance_fraction"] == 0.5
    assert tally.batch["group/valid_size"] == pytest.approx(6 / 4)


def test_idle_shares_and_times_add_up(tmp_path: Path) -> None:
    write(tmp_path, EVENTS)
    rows = step_rows(tmp_path)
    assert sum(r["time/step"] for r in rows) == pytest.approx(rows[-1]["t"])
    for row in rows:
        assert row["time/train"] + row["time/wait"] == pytest.approx(row["time/step"])
        assert all(0 <= row[f"idle_ratio/{role}"] <= 1 for role in ("learner", "engine", "env"))


def test_spans_count_overlap_once_and_nothing_before_the_window() -> None:
    spans = Spans()
    for span in ((0.0, 2.0), (1.0, 3.0), (1.5, 1.6), (5.0, 6.0)):
        spans.add(*span)
    assert spans.take(1.0) == (pytest.approx(3.0), pytest.approx(4.1))
    assert spans.take(1.0) == (0.0, 0.0)


def test_percentile_of_weighted_counts() -> None:
    assert percentile({0: 95, 7: 5}, 0.95) == 0
    assert percentile({0: 94, 7: 6}, 0.95) == 7
    assert percentile({}, 0.95) == 0


@pytest.mark.parametrize("step", [1, 6, 11])
def test_continuing_gives_the_rows_of_the_uninterrupted_run(tmp_path: Path, step: int) -> None:
    """Rows written after the checkpoint move aside; cumulative counts go on."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    write(whole, EVENTS)
    cut = next(i for i, e in enumerate(EVENTS) if e["e"] == "StepEnd" and e["step"] == step) + 1
    offset = write(broken, EVENTS[:cut]).offset
    write(broken, EVENTS[cut : cut + 60], offset=offset, history=EVENTS[:cut])
    write(broken, EVENTS[cut:], offset=offset, history=EVENTS[:cut])
    assert (broken / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_tensorboard_holds_every_finite_number(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write(tmp_path, EVENTS, trackers=[TensorBoard(tmp_path / "tensorboard")])
    read = EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    points = read.Scalars("staleness/mean")
    rows = step_rows(tmp_path)
    assert [p.step for p in points] == [r["step"] for r in rows]
    assert [p.value for p in points] == pytest.approx([r["staleness/mean"] for r in rows])
    assert "eval/accuracy" in read.Tags()["scalars"]


def test_tensorboard_purges_what_a_resume_repeats(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first = TensorBoard(tmp_path)
    for step in (1, 2, 3):
        first.scalars(step, float(step), {"x": 1.0})
    first.close()
    second = TensorBoard(tmp_path, step=1)
    second.scalars(2, 2.0, {"x": 5.0})
    second.close()
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(p.step, p.value) for p in read.Scalars("x")] == [(1, 1.0), (2, 5.0)]


def test_wandb_asked_for_and_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "wandb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    logging = RunConfig().logging
    logging.wandb = True
    with pytest.raises(ConfigError, match="pip install wandb"):
        make_trackers(tmp_path, logging, name="x", config={})


def test_wandb_that_does_not_start_says_how_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class UsageError(Exception):
        pass

    def init(**settings: Any) -> Any:
        raise UsageError("api_key not configured (no-tty)")

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    logging = RunConfig().logging
    logging.wandb = True
    with pytest.raises(ConfigError, match=r"UsageError: api_key not configured.*wandb login.*WANDB_API_KEY.*offline"):
        make_trackers(tmp_path, logging, name="x", config={})


def test_summary_has_the_keys_of_json_output() -> None:
    summary = summarize(EVENTS)
    assert (summary["steps"], summary["version"]) == (12, 12)
    assert summary["ledger"] == EVENTS[-1]["ledger"]
    retry = [e for e in EVENTS if e["e"] == "StepStart" and e["step"] == 4][-1]
    starts = [e for e in EVENTS if (e["e"] == "StepStart" and e["step"] != 4) or e is retry]
    assert summary["staleness"]["max"] == max(e["staleness"]["max"] for e in starts)
    mean = sum(e["staleness"]["total"] for e in starts) / sum(e["tokens"] for e in starts)
    assert summary["staleness"]["mean"] == pytest.approx(mean)
    evals = [e["accuracy"] for e in EVENTS if e["e"] == "Eval"]
    count = next(e["n"] for e in EVENTS if e["e"] == "Eval")
    assert summary["eval"] == {"accuracy": evals[-1], "initial_accuracy": evals[0], "mean": evals[-1],
                               "initial_mean": evals[0], "count": count, "evaluations": len(evals)}  # fmt: skip
    assert (summary["complete"], summary["reason"]) == (True, "max_steps")


def test_summary_of_a_run_without_steps() -> None:
    summary = summarize(synthetic(steps=0))
    assert summary["staleness"] == {"mean": 0.0, "max": 0}
    assert set(summary["eval"]) == {"accuracy", "initial_accuracy", "mean", "initial_mean", "count", "evaluations"}
    assert set(summary["eval"].values()) == {None, 0}
    assert summarize([])["complete"] is False


def test_an_event_costs_a_few_calls_however_long_the_run(tmp_path: Path) -> None:
    runs = [synthetic(steps=steps, prompts_per_step=8, group_size=8, max_num_seqs=128) for steps in (15, 60)]
    short, long = (calls(lambda: write(tmp_path, events)) / len(events) for events in runs)  # noqa: B023
    assert long < 1.1 * short
    assert long < 25


def test_observing_does_not_import_torch() -> None:
    code = (
        "import sys, tempfile; from pathlib import Path\n"
        "import stretto.observe.checker, stretto.observe.metrics, stretto.observe.summary\n"
        "import stretto.observe.report, stretto.observe.live, stretto.observe.samples\n"
        "from stretto.observe.trackers import TensorBoard\n"
        "TensorBoard(Path(tempfile.mkdtemp())).close()\n"
        "assert not {'torch', 'tensorflow', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
