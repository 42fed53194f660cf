"""Comparisons and calibrations of a tiny recipe, run for real; and their figures from made-up records."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from stretto.kernel.errors import ConfigError, DataError, InvariantError, StrettoError
from stretto.observe.confidence import t_interval
from stretto.run import rundir
from stretto.sweep.arms import parse_arms
from stretto.sweep.calibrate import calibrate
from stretto.sweep.cells import Cell, run_cells
from stretto.sweep.compare import Comparison, Point, check_exact, collapse_of, collapsed, compare, mean_accuracy
from stretto.sweep.report import markdown, write_report

TINY = (
    "max_steps=6", "prompts_per_step=2", "group_size=4", "eval.every=3", "eval.tasks=4", "sft.accuracy=0",
    "sft.hidden=8", "sft.layers=1", "sft.intermediate=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path]:
    out = tmp_path_factory.mktemp("sweep") / "compare"
    arms = parse_arms("grpo,plain=grpo[reference=proximal],ppo")
    return compare("stale", TINY, arms, [0, 3], [0], out), out


def test_every_run_has_exactly_its_lag(comparison: tuple[Comparison, Path]) -> None:
    result, _ = comparison
    assert len(result.records) == 6
    for record in result.records:
        assert record["exact_lag"], record["name"]
        assert record["series"]["staleness/max"] == [min(k, record["lag"]) for k in range(6)]


def test_all_objectives_start_from_the_same_data(comparison: tuple[Comparison, Path]) -> None:
    result, _ = comparison
    assert len({r["series"]["reward/trained/mean"][0] for r in result.records}) == 1
    assert len({json.dumps(r["accuracy"][0]) for r in result.records}) == 1


def test_a_comparison_goes_on_where_it_was(comparison: tuple[Comparison, Path]) -> None:
    result, out = comparison
    path = out / "results.jsonl"
    before = path.read_bytes()
    heard: list[str] = []
    again = compare("stale", TINY, result.arms, [0, 3], [0], out, done=lambda r: heard.append(r["name"]))
    assert path.read_bytes() == before
    assert len(heard) == 6
    assert again.points == result.points
    path.write_bytes(before[:-20])  # killed while it wrote the last line
    compare("stale", TINY, result.arms, [0, 3], [0], out, jobs=1)
    assert sorted(map(_timeless, path.read_text().splitlines())) == sorted(map(_timeless, before.decode().splitlines()))


def _timeless(line: str) -> str:
    record = json.loads(line)
    return json.dumps({k: v for k, v in record.items() if k not in ("wall_s", "pid")}, sort_keys=True)


def test_a_directory_belongs_to_one_recipe(comparison: tuple[Comparison, Path], tmp_path: Path) -> None:
    result, out = comparison
    with pytest.raises(ConfigError, match="another recipe or other settings"):
        compare("stale", [*TINY, "learner.lr=1e-5"], result.arms, [0], [0], out)
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds no sweep"):
        compare("stale", TINY, result.arms, [0], [0], tmp_path)


def test_the_report_is_one_page_with_its_command(comparison: tuple[Comparison, Path], tmp_path: Path) -> None:
    result, _ = comparison
    page = write_report(result, ["stretto", "compare", "stale"], tmp_path / "report.html").read_text()
    assert page.count("<svg") == 4
    assert "stretto compare stale" in page
    assert "http://" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    )
    for arm in ("grpo", "plain", "ppo"):
        assert f"<code>{arm}</code>" in page
        assert f"`{arm}`" in markdown(result)


def test_what_would_spoil_a_comparison_is_refused(comparison: tuple[Comparison, Path], tmp_path: Path) -> None:
    result, _ = comparison
    arms = parse_arms("grpo")
    with pytest.raises(ConfigError, match=r"eval\.tasks"):
        compare("stale", [*TINY, "eval.tasks=0", "eval.every=0"], arms, [2], [0], tmp_path / "out")
    with pytest.raises(ConfigError, match=r"control\.in_flight"):
        compare("stale", [*TINY, "control.in_flight=keep"], arms, [2], [0], tmp_path / "out")
    with pytest.raises(InvariantError, match="not exactly the lag"):
        check_exact([result.records[0] | {"exact_lag": False}])
    other = json.loads(json.dumps(result.records[0]))
    other["series"]["reward/trained/mean"][0] = 0.123
    with pytest.raises(InvariantError, match="started from different data"):
        check_exact([result.records[0], other])


def test_slow_rollouts_keep_the_lag_exact(tmp_path: Path) -> None:
    slow = [*TINY, "simulation.decode_base_s=5", "engine.max_num_seqs=2"]
    result = compare("stale", slow, parse_arms("grpo"), [2], [0], tmp_path / "out", jobs=1)
    assert result.records[0]["exact_lag"]


def test_a_run_that_fails_is_recorded_and_counts_as_collapsed(tmp_path: Path) -> None:
    cell = Cell(
        {"arm": "x", "lag": 0, "seed": 0}, ("simulation.decode_base_s=5", "deadlines.batch_s=0.1", "lag_bound=0")
    )
    (record,) = run_cells("stale", TINY, [cell], tmp_path / "out", jobs=1)
    assert "batch" in record["error"]
    assert collapsed(record)
    assert not list((tmp_path / "out" / "runs").glob("*"))


def test_what_a_run_would_refuse_is_said_before_any_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="100000 likeliest tokens"):
        compare("stale", TINY, parse_arms("grpo,klpo[estimator=topk,K=100000]"), [2], [0], tmp_path / "out")
    with pytest.raises(ConfigError, match="--lag 6 is never reached"):
        compare("stale", TINY, parse_arms("grpo"), [2, 6], [0], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_or_bad_data_ends_a_sweep_and_is_no_collapse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise StrettoError("No space left on device")

    monkeypatch.setattr("stretto.run.launch.launch", full)
    cell = Cell({"arm": "x", "lag": 0, "seed": 0}, ("lag_bound=0",))
    with pytest.raises(StrettoError, match="No space"):
        run_cells("stale", TINY, [cell], tmp_path / "out", jobs=1)
    assert (tmp_path / "out" / "results.jsonl").read_text() == ""


def test_a_directory_serves_one_sweep_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    cell = Cell({"arm": "x", "lag": 0, "seed": 0}, ("lag_bound=0",))
    with rundir.hold(out), pytest.raises(ConfigError, match=f"in use: process {os.getpid()}"):
        run_cells("stale", TINY, [cell], out, jobs=1)


def test_a_broken_claim_is_refused(comparison: tuple[Comparison, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "recipe.json").write_text("{")
    with pytest.raises(DataError, match=r"recipe\.json can't be read"):
        compare("stale", TINY, parse_arms("grpo"), [0], [0], out)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="not a directory"):
        compare("stale", TINY, parse_arms("grpo"), [0], [0], tmp_path / "file")


def test_bad_records_are_refused(tmp_path: Path) -> None:
    cell = Cell({"arm": "x", "lag": 0, "seed": 0}, ("lag_bound=0",))
    out = tmp_path / "out"
    run_cells("stale", TINY, [cell], out, jobs=1)
    (out / "results.jsonl").write_text("no json\n")
    with pytest.raises(DataError, match=r"results\.jsonl"):
        run_cells("stale", TINY, [cell], out, jobs=1)
    (out / "results.jsonl").write_text('{"name": "x"}\n')
    with pytest.raises(DataError, match=r"results\.jsonl:1: not a run's record"):
        run_cells("stale", TINY, [cell], out, jobs=1)


def record(rewards: list[float], accuracy: list[tuple[int, float]], **more: Any) -> dict[str, Any]:
    return {"series": {"reward/trained/mean": rewards}, "accuracy": accuracy, **more}


def test_what_counts_as_a_collapse() -> None:
    rise_and_fall = [0.2] * 10 + [0.8] * 20 + [0.1] * 20
    assert collapse_of(record(rise_and_fall, [(0, 0.2), (50, 0.2)])) is not None
    assert collapse_of(record([0.2] * 10 + [0.8] * 30, [])) is None
    assert collapsed(record([0.5] * 30, [(0, 0.8), (30, 0.3)]))
    assert not collapsed(record(rise_and_fall, [(0, 0.2), (50, 0.2)]))  # it fell, and came back to where it was
    assert not collapsed(record([0.5] * 30, [(0, 0.8), (30, 0.5)]))
    assert collapse_of(record([0.5] * 4, [], error="WeightsError: ...")) == 5
    assert collapse_of(record([0.5] * 5 + [0.0] * 40, [])) == 11  # it never rose: five of ten are 0.5, then four
    assert collapse_of(record([0.5] * 5 + [0.0] * 20 + [0.5] * 20, [])) is None


@pytest.mark.parametrize(
    ("final", "collapsed", "verdict"),
    [((0.69, 0.02, 1.36), 0, "undecided"), ((0.70, 0.60, 0.80), 0, "holds"), ((0.5, 0.4, 0.59), 0, "fades"),
     ((0.5, 0.4, 0.6), 0, "undecided"), ((0.3, 0.1, 0.5), 2, "collapses"), ((0.3, 0.1, 0.5), 1, "fades"),
     ((0.9, math.nan, math.nan), 0, "undecided")],
)  # fmt: skip
def test_a_verdict_is_undecided_where_the_interval_covers_the_start(
    final: tuple[float, float, float], collapsed: int, verdict: str
) -> None:
    (arm,) = parse_arms("topr")
    point = Point("topr", 32, 3, final, final, collapsed, 0, 0, 0.6, 1.0, 1.0)
    assert Comparison("stale", [arm], [32], [0, 1, 2], [point], []).verdicts() == {"topr": verdict}


def test_area_and_interval() -> None:
    assert mean_accuracy(record([], [(0, 0.0), (10, 1.0), (30, 1.0)])) == pytest.approx((5 + 20) / 30)
    mean, low, high = t_interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert high - mean == pytest.approx(4.302653 / 3**0.5, rel=1e-6)
    assert low == pytest.approx(2 * mean - high)


def test_calibration_sweeps_windows_and_never_recommends_more_for_longer(tmp_path: Path) -> None:
    def run(interval: int, horizon: int) -> float:
        return calibrate(
            "stale", [s for s in TINY if not s.startswith("eval")], [1, 3], [1e-4], [0], tmp_path / "out",
            sync_interval=interval, horizon=horizon, jobs=1,
        ).rate  # fmt: skip

    assert run(2, 100) >= run(4, 100) >= run(4, 1000) > 0
    lines = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    stale = {r["sync_interval"]: r["series"]["staleness/max"] for r in map(json.loads, lines)}
    assert stale == {1: [0] * 6, 3: [0, 1, 2, 0, 1, 2]}
    with pytest.raises(ConfigError, match="--interval"):
        run(0, 10)


@pytest.mark.parametrize("rates", [[], [0.0], [-1.0], [1e-3, 1e-3], [float("nan")], [float("inf")]])
def test_rates_are_distinct_and_positive(rates: list[float], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--rates"):
        calibrate("stale", [], [2], rates, [0], tmp_path / "out", sync_interval=2, horizon=10)
