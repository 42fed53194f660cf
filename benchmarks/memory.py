"""Does a long run's memory stay flat? The process of `stretto simulate`, and each reader of its log.

    python benchmarks/memory.py [--quick] [--json] [--steps 200000]

A run of many small simulated steps (one group of two trajectories each) goes on in a process of its own; its resident
memory is read from the kernel at each tenth of its steps. Then `stretto check`, `stretto report` and `stretto log` read
its log, and a resume that has nothing left to do; each one's largest resident memory is compared with that over the log
of a run a tenth as long. Fails where memory grew by more than 5 % after the first tenth. `stretto check` knows the
latest 65,536 trajectories one by one; its log is compared with the first 50,000 steps, where it knows that many, and
left out of runs of fewer than twice as many (`--quick`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from stretto.kernel.logfile import stream_events

STEPS, QUICK = 200_000, 20_000
BAR = 1.05
FILLED = 50_000
"""steps after which the checker remembers as much as it ever does"""
SETTINGS = ("prompts_per_step=1", "group_size=2", "lag_bound=2", "engine.count=2", "engine.max_num_seqs=4",
            "simulation.lengths.mean=100", "simulation.lengths.high=400", "simulation.failure_probability=0.01",
            "save_every=1000", "logging.report=false", "logging.console=off", "eval.tasks=0")  # fmt: skip


def rss_mib(pid: int) -> float:
    """Resident memory of a process, MiB."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


def stretto(*arguments: str) -> subprocess.Popen[bytes]:
    """The command, in a process of its own."""
    return subprocess.Popen([sys.executable, "-m", "stretto.cli", *arguments], stdout=subprocess.DEVNULL)


def simulate(out: Path, steps: int) -> list[float]:
    """MiB when each tenth of the steps was done."""
    run = stretto("simulate", "quickstart", f"out={out}", f"max_steps={steps}", *SETTINGS)
    sizes: list[float] = []
    done = at = 0
    rows = out / "metrics.jsonl"
    while run.poll() is None:
        if rows.exists():
            with open(rows, "rb") as file:
                file.seek(at)
                new = file.read()
            done, at = done + new.count(b"\n"), at + len(new)
        while len(sizes) < 10 and done >= steps * (len(sizes) + 1) / 10 - 2:
            sizes.append(rss_mib(run.pid))
        time.sleep(0.05)
    if run.returncode:
        raise SystemExit(f"the simulation ended with code {run.returncode}")
    return sizes


def first_steps(run: Path, steps: int, out: Path) -> Path:
    """A run directory with the log of the first ``steps`` alone."""
    out.mkdir()
    with open(out / "events.jsonl", "wb") as file:
        for event in stream_events(run):
            file.write(orjson.dumps(event, option=orjson.OPT_APPEND_NEWLINE))
            steps -= event["e"] == "StepEnd"
            if not steps:
                break
    return out


def largest(*arguments: str) -> float:
    """The largest resident memory of the command, MiB."""
    process = stretto(*arguments)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"stretto {' '.join(arguments)} ended with status {status}")
    return usage.ru_maxrss / 1024


def measure(steps: int, folder: Path) -> list[dict[str, Any]]:
    """A row for the run and one for each reader."""
    whole, short = folder / "whole", folder / "short"
    sizes = simulate(whole, steps)
    rows: list[dict[str, Any]] = [{"name": f"{steps:,} simulated steps", "tenths_mib": [round(s, 1) for s in sizes],
             "ratio": max(sizes) / sizes[0]}]  # fmt: skip
    simulate(short, steps // 10)
    readers = [("report", short, ["report"]), ("log", short, ["log"]), ("resume", short, ["simulate", "--resume"])]
    if steps >= 2 * FILLED:
        readers.append(("check", first_steps(whole, FILLED, folder / "first"), ["check"]))
    for name, less, command in readers:
        small, large = (largest(*command, str(run)) for run in (less, whole))
        rows.append({"name": f"{name} of its log", "tenths_mib": [round(small, 1), round(large, 1)],
                     "ratio": large / small})  # fmt: skip
    log = next(whole.glob("events.jsonl*"))
    bytes_per_step = {path.name: round(path.stat().st_size / steps, 1) for path in (log, whole / "metrics.jsonl")}
    return [{**row, "bar": BAR, "pass": row["ratio"] <= BAR, "disk_bytes_per_step": bytes_per_step} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} steps")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(QUICK if chosen.quick else chosen.steps, Path(folder))
    if chosen.json:
        print(json.dumps({"benchmark": "memory", "rows": rows}))
    else:
        for row in rows:
            sizes = " ".join(f"{size:.1f}" for size in row["tenths_mib"])
            print(f"{row['name']:<28} {sizes} MiB, x {row['ratio']:.3f} ({'ok' if row['pass'] else 'GREW'})")
        print("on disk, bytes a step:", rows[0]["disk_bytes_per_step"])
    sys.exit(not all(row["pass"] for row in rows))


if __name__ == "__main__":
    main()
