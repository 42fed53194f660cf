"""Whole runs with worker processes."""

from __future__ import annotations

import math
import os
import re
import time
from pathlib import Path

import pytest

from stretto.data.modes import InFlight
from stretto.kernel.events import read_events
from stretto.kernel.logfile import find_log
from stretto.observe.samples import read_samples

from .runs import assert_clean, exit_code, forked, last_json, start, train
from .sleepy import Sleepy


def cpu_s(pids: set[int]) -> float:
    """CPU seconds that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.slow
def test_a_run_that_waits_for_tools_burns_less_than_a_twentieth_of_a_core(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    tests = str(Path(__file__).parent.parent)
    with train(out, model, "max_steps=3", f"env.name={Sleepy.__module__}:Sleepy", PYTHONPATH=tests) as run:
        run.until_event("Submitted", 2)
        time.sleep(1.0)
        family = {run.process.pid, run.child("engine-0"), run.child("learner")}
        before = cpu_s(family)
        time.sleep(4.0)
        assert run.process.poll() is None
        assert (cpu_s(family) - before) / 4.0 < 0.05


def test_the_learner_keeps_a_core_to_itself_when_asked(tmp_path: Path, model: Path) -> None:
    with train(tmp_path / "run", model, "max_steps=400", "workers.own_cores=true") as run:
        run.until_event("StepEnd", 1)
        assert os.sched_getaffinity(run.child("learner")) == {max(os.sched_getaffinity(0))}
        assert os.sched_getaffinity(run.child("engine-0")) == os.sched_getaffinity(0)


def test_a_start_up_that_takes_too_long_names_worker_phase_and_setting(tmp_path: Path, model: Path) -> None:
    with train(tmp_path / "run", model, "max_steps=1", "deadlines.startup_s=0.05", "deadlines.shutdown_s=0.5") as run:
        code, output = run.end(60)
    assert code == 1
    assert re.search(r"start-up waited 0.05 s for (engine-0|learner): (starting|importing|waiting|loading)", output)
    assert "deadlines.startup_s" in output
    assert_clean(tmp_path / "run")


@pytest.mark.slow
def test_memory_stays_flat_over_a_thousand_steps(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    sizes = {}
    pid = forked(lambda: start(out, model, "max_steps=1000", "sampling.max_new_tokens=3"))
    try:
        for steps in (300, 600, 900):
            while find_log(out) is None or sum(e["e"] == "StepEnd" for e in read_events(out)) < steps:
                time.sleep(0.2)
            sizes[steps] = rss_mib(pid)
    finally:
        assert exit_code(pid) == 0
    assert sizes[900] - sizes[300] < 12, sizes


@pytest.mark.slow
@pytest.mark.parametrize("mode", tuple(InFlight))
def test_each_in_flight_mode_trains_to_its_end(mode: str, tmp_path: Path, model: Path) -> None:
    out = tmp_path / "run"
    with train(out, model, f"control.in_flight={mode}", "max_steps=6", "--json") as run:
        code, output = run.end()
    assert code == 0, output
    assert_clean(out, complete=True)
    result = last_json(output)
    assert result["version"] == 6
    assert result["staleness"]["max"] <= 2
    assert result["ledger"]["trained"] == result["ledger"]["submitted"] == 24
    ratios = [p["ratio"] for s in read_samples(out, 0) for p in s["pieces"] if p["mask"]]
    assert ratios
    assert all(math.isclose(r, 1.0, abs_tol=1e-3) for r in ratios), "version 0 sampled and trains"
