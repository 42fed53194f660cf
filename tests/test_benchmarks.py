"""The arithmetic of the benchmark against TRL, and that its TRL side trains."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def trl_benchmark() -> ModuleType:
    """``benchmarks/trl.py`` under a name that doesn't hide the package TRL."""
    spec = importlib.util.spec_from_file_location("benchmark_trl", BENCHMARKS / "trl.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_clock_starts_at_the_first_submission_and_stands_still_in_evaluations(trl_benchmark: ModuleType) -> None:
    events: list[dict[str, Any]] = [
        {"e": "Eval", "start": 8.0, "t": 9.0, "version": 0, "accuracy": 0.5},
        {"e": "Submitted", "t": 10.0},
        {"e": "StepEnd", "t": 11.0},
        {"e": "StepEnd", "t": 12.0},
        {"e": "Eval", "start": 12.0, "t": 15.0, "version": 2, "accuracy": 0.7},
        {"e": "StepEnd", "t": 16.0},
    ]
    found = trl_benchmark.clocked(events)
    assert found["ends"] == [1.0, 2.0, 3.0]
    assert found["evals"] == [(0, 0.0, 0.5), (2, 2.0, 0.7)]


def test_clock_runs_while_the_learner_works_in_an_evaluation(trl_benchmark: ModuleType) -> None:
    events: list[dict[str, Any]] = [
        {"e": "Submitted", "t": 0.0},
        {"e": "Busy", "worker": "engine-0", "start": 2.0, "end": 6.0},
        {"e": "StepStart", "t": 1.0},
        {"e": "StepEnd", "t": 3.0},
        {"e": "StepStart", "t": 4.0},
        {"e": "StepEnd", "t": 4.5},
        {"e": "Eval", "start": 2.0, "t": 6.0, "version": 1, "accuracy": 0.7},
        {"e": "StepStart", "t": 6.5},
        {"e": "StepEnd", "t": 7.0},
    ]
    assert trl_benchmark.clocked(events)["ends"] == pytest.approx([3.0, 4.5 - 1.0, 7.0 - 4.0 + 1.0 + 0.5])


def test_rate_leaves_out_first_and_last_steps(trl_benchmark: ModuleType) -> None:
    ends = [5.0, 10.0, 11.0, 12.0, 13.0, 13.1]
    assert trl_benchmark.rate(ends, 256, 2, 1) == pytest.approx(256.0)
    with pytest.raises(SystemExit, match="too few"):
        trl_benchmark.rate(ends[:2], 256, 2)


def test_accuracy_row_takes_medians_and_says_what_was_not_reached(trl_benchmark: ModuleType) -> None:
    fast = [{"evals": [(0, 0.0, 0.5), (10, s, 0.82)]} for s in (1.0, 2.0, 4.0)]
    slow = [{"evals": [(0, 0.0, 0.5), (10, 9.0, 0.7), (20, s, 0.9)]} for s in (10.0, 12.0, 30.0)]
    row = trl_benchmark.accuracy_row(fast, slow, 0.8, 400)
    assert (row["ours"], row["other"], row["ratio"], row["pass"]) == (2.0, 12.0, 6.0, True)
    assert row["steps"] == [[10, 10, 10], [20, 20, 20]]
    missed = trl_benchmark.accuracy_row(fast, slow, 0.85, 400)
    assert (missed["ours"], missed["ratio"], missed["pass"]) == (None, None, False)
    assert "Stretto missed it in 400 steps" in missed["note"]


def test_a_ratio_below_its_bar_fails(trl_benchmark: ModuleType) -> None:
    assert trl_benchmark.row("speed", 30.0, 10.0, 3.0, 3.0)["pass"]
    assert not trl_benchmark.row("speed", 29.0, 10.0, 2.9, 3.0)["pass"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL: pip install -e '.[bench]'")
def test_trl_trains_on_our_tasks_and_is_evaluated_by_our_engine() -> None:
    from stretto.config.load import load_config
    from stretto.envs.build import build_environment
    from stretto.models.resolve import resolve_model

    config = load_config("quickstart")
    job = {
        "model": str(resolve_model(config, build_environment(config))), "seed": 0, "threads": 1, "steps": 6,
        "limit_s": 120.0, "eval_every": 2, "target": 1.1,
    }  # fmt: skip
    command = [sys.executable, "-P", str(BENCHMARKS / "trl_peer.py"), json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(result["ends"]) == 6
    assert [step for step, _, _ in result["evals"]] == [0, 2, 4, 6]
    assert result["ends"] == sorted(result["ends"])
    assert result["evals"][0][2] > 0.3  # the warm-started model, read and scored as Stretto does
    assert result["evals"][-1][2] != result["evals"][0][2]  # the weights that it trained
