"""Stretto against TRL's GRPOTrainer: the quickstart recipe, the same model directory, tasks, reward code, batch
(32 prompts x 8), token limit, sampling and optimizer, float32, on the same two cores.

    pip install -e '.[bench]'
    python benchmarks/trl.py [--quick] [--json] [--repeats N] [--accuracy A]

1. TRL alone with each thread count of ``--threads``; the faster one is used from here on. (Stretto runs its engine and
   its learner in two processes of one thread each, with lag bound 2.)
2. Samples/s in steady state, TRL and Stretto in turns, one seed a turn, no evaluation: medians over the turns. First
   steps are left out on both sides, and Stretto's last ones, which have no rollouts beside them.
3. Wall seconds to a held-out greedy accuracy (500 tasks, evaluated every 10 steps), in turns. Neither clock runs while
   it evaluates; where Stretto's learner works during an evaluation, its clock runs.
4. Start-up (process start to first rollout, and the end) apart.

What differs between the two trainers is listed in ``trl_peer.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stretto.config.load import load_config
from stretto.envs.build import build_environment
from stretto.kernel.events import Event, read_events
from stretto.models.resolve import resolve_model

BAR = 3.0
LAG_BOUND = 2
EVAL_EVERY = 10
QUIET = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "TRANSFORMERS_VERBOSITY": "error",
         "PYTHONWARNINGS": "ignore", "TOKENIZERS_PARALLELISM": "false"}  # fmt: skip


def child(command: list[str], threads: int) -> tuple[str, float]:
    """The last line that ``command`` prints, and how long it took; ends the benchmark if it fails."""
    start = time.perf_counter()
    environment = {**os.environ, **QUIET, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip().splitlines()[-1], time.perf_counter() - start


def theirs(model: Path, seed: int, threads: int, steps: int, limit_s: float, target: float | None = None) -> Any:
    """One TRL run (see ``trl_peer.train``); ``target``: evaluate, and stop there."""
    job = {"model": str(model), "seed": seed, "threads": threads, "steps": steps, "limit_s": limit_s,
           "eval_every": 0 if target is None else EVAL_EVERY, "target": target}  # fmt: skip
    peer = Path(__file__).with_name("trl_peer.py")
    line, wall_s = child([sys.executable, "-P", str(peer), json.dumps(job)], threads)
    result = json.loads(line)
    return {**result, "startup_s": wall_s - result["inside_s"]}


def overrides(model: Path, seed: int, steps: int, evaluate: bool) -> list[str]:
    """Stretto's settings beside the recipe's."""
    evaluation = [f"eval.every={EVAL_EVERY}"] if evaluate else ["eval.tasks=0"]
    return [f"model={model}", f"seed={seed}", f"max_steps={steps}", f"lag_bound={LAG_BOUND}", "workers.threads=1",
            "logging.console=off", "logging.report=false", *evaluation]  # fmt: skip


def ours(model: Path, seed: int, steps: int, evaluate: bool = False) -> dict[str, Any]:
    """One ``stretto train quickstart``, read from its event log: ``ends``, ``evals`` as TRL's, staleness, start-up."""
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "stretto.cli", "train", "quickstart", f"out={out}/run", "--json"]
        line, wall_s = child([*command, *overrides(model, seed, steps, evaluate)], 1)
        events = read_events(Path(out) / "run")
    first = next(e["t"] for e in events if e["e"] == "Submitted")
    startup_s = wall_s - (events[-1]["t"] - first)
    return {**clocked(events), "startup_s": startup_s, "staleness": json.loads(line)["staleness"]["mean"]}


def clocked(events: Sequence[Event]) -> dict[str, Any]:
    """``ends``: the clock at each step's end; ``evals``: (step, clock at its start, accuracy). The clock starts with
    the first submission and stands still during evaluations, except while the learner works."""
    start = next(e["t"] for e in events if e["e"] == "Submitted")
    starts = [e["t"] for e in events if e["e"] == "StepStart"]
    busy = list(zip(starts, (e["t"] for e in events if e["e"] == "StepEnd"), strict=False))  # the last may not end
    evals = [e for e in events if e["e"] == "Eval"]
    pauses = [gap for e in evals for gap in gaps(e["start"], e["t"], busy)]

    def clock(t: float) -> float:
        return max(t, start) - start - sum(max(0.0, min(b, t) - max(a, start)) for a, b in pauses)

    ends = [clock(e["t"]) for e in events if e["e"] == "StepEnd"]
    return {"ends": ends, "evals": [(e["version"], clock(e["start"]), e["accuracy"]) for e in evals]}


def gaps(start: float, end: float, busy: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The parts of [start, end] outside all ``busy`` spans (sorted, apart from each other)."""
    found = []
    for a, b in busy:
        if b <= start or a >= end:
            continue
        if a > start:
            found.append((start, a))
        start = max(start, b)
    return [*found, (start, end)] if start < end else found


def rate(ends: Sequence[float], samples: int, skip_first: int, skip_last: int = 0) -> float:
    """Samples per second between the end of step ``skip_first`` and that of the last one not skipped."""
    kept = ends[skip_first - 1 : len(ends) - skip_last]
    if len(kept) < 2:
        raise SystemExit(f"only {len(ends)} steps in the time limit: too few for a rate")
    return samples * (len(kept) - 1) / (kept[-1] - kept[0])


def reached(evals: Sequence[Sequence[float]], target: float) -> tuple[int, float] | None:
    """(step, seconds) of the first evaluation at ``target`` or above."""
    return next(((int(step), seconds) for step, seconds, accuracy in evals if accuracy >= target), None)


def row(name: str, mine: float | None, other: float | None, ratio: float | None, bar: float | None, **more: Any) -> Any:
    """One figure; without a bar it passes if there is one."""
    passed = mine is not None if bar is None else ratio is not None and ratio >= bar
    values = {"ours": mine, "other": other, "ratio": ratio}
    rounded = {key: None if value is None else round(value, 3) for key, value in values.items()}
    return {"name": name, **rounded, "bar": bar, "pass": passed, **more}


def accuracy_row(mine: Sequence[Any], other: Sequence[Any], target: float, steps: int) -> dict[str, Any]:
    """Seconds to the target: medians over the seeds; a side that missed it with any seed has no figure."""
    sides = [[reached(run["evals"], target) for run in runs] for runs in (mine, other)]
    seconds = [None if None in side else statistics.median(hit[1] for hit in side if hit) for side in sides]
    a, b = seconds
    missed = [
        f"{who} missed it in {steps} steps or its time limit, best {max(e[2] for r in runs for e in r['evals']):.3f}"
        for who, runs, value in zip(("Stretto", "TRL"), (mine, other), seconds, strict=True)
        if value is None
    ]
    return row(f"seconds to {target:g} held-out greedy accuracy", a, b, b / a if a and b else None, None,
               steps=[[hit and hit[0] for hit in side] for side in sides], note="; ".join(missed))  # fmt: skip


def say(text: str) -> None:
    """Progress, kept off stdout."""
    print(text, file=sys.stderr, flush=True)


def measure(args: argparse.Namespace, model: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """All rows, and TRL's versions and configuration."""
    config = load_config("quickstart")
    samples = config.prompts_per_step * config.group_size
    skip, steps, limit_s = (6, 16, 40.0) if args.quick else (15, 60, 120.0)
    probes = {n: theirs(model, 0, n, skip + 10, limit_s) for n in args.threads}
    rates = {n: rate(run["ends"], samples, max(1, min(skip, len(run["ends"]) - 2))) for n, run in probes.items()}
    threads = max(rates, key=lambda n: rates[n])
    say("TRL, samples/s by threads: " + ", ".join(f"{n}: {r:.0f}" for n, r in rates.items()) + f"; takes {threads}")

    pairs: list[tuple[Any, Any]] = []
    left: list[float] = []
    right: list[float] = []
    for seed in range(args.repeats):
        other = theirs(model, seed, threads, skip + steps, limit_s)
        mine = ours(model, seed, skip + steps + LAG_BOUND + 1)
        pairs.append((mine, other))
        left.append(rate(mine["ends"], samples, skip, LAG_BOUND + 1))
        right.append(rate(other["ends"], samples, skip))
        say(f"turn {seed}: samples/s TRL {right[-1]:.0f}, Stretto {left[-1]:.0f}; load {os.getloadavg()[0]:.1f}")
    ratio = statistics.median(a / b for a, b in zip(left, right, strict=True))
    rows = [
        row("samples/s, steady state", statistics.median(left), statistics.median(right), ratio, BAR,
            trl_threads=threads, trl_by_threads={str(n): round(r, 1) for n, r in rates.items()},
            turns=[[round(a, 1), round(b, 1)] for a, b in zip(left, right, strict=True)],
            staleness=round(statistics.mean(a["staleness"] for a, _ in pairs), 2))
    ]  # fmt: skip
    learning: list[tuple[Any, Any]] = []
    for seed in range(args.repeats):
        other = theirs(model, seed, threads, args.max_steps, args.limit_s, args.accuracy)
        learning.append((ours(model, seed, args.max_steps, evaluate=True), other))
        mine_at, other_at = (reached(run["evals"], args.accuracy) for run in learning[-1])
        say(f"seed {seed}: (step, seconds) at accuracy {args.accuracy:g}: TRL {other_at}, Stretto {mine_at}")
    rows.append(accuracy_row(*zip(*learning, strict=True), args.accuracy, args.max_steps))
    starts = [statistics.median(run[i]["startup_s"] for run in pairs) for i in (0, 1)]
    rows.append(row("start-up and end, seconds", starts[0], starts[1], starts[1] / starts[0], None))
    return rows, {key: probes[threads][key] for key in ("versions", "config")}


def main() -> int:
    """Run all; exit status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="few steps, one turn, a lower accuracy")
    parser.add_argument("--repeats", type=int, help="turns and seeds (3; quick: 1)")
    parser.add_argument("--accuracy", type=float, help="held-out greedy accuracy to reach (0.7; quick: 0.6)")
    parser.add_argument("--max-steps", type=int, help="give up after so many steps (300; quick: 80)")
    parser.add_argument("--limit-s", type=float, default=400.0, help="TRL gives up after so many seconds")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="TRL's thread counts to try")
    args = parser.parse_args()
    args.repeats = args.repeats or (1 if args.quick else 3)
    args.accuracy = args.accuracy or (0.6 if args.quick else 0.7)
    args.max_steps = args.max_steps or (80 if args.quick else 300)
    config = load_config("quickstart")
    model = resolve_model(config, build_environment(config), say)
    rows, peer = measure(args, model)
    mine = load_config("quickstart", overrides(model, 0, args.max_steps, True))
    print(f"python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()}, model {model.name}")
    print(f"stretto {version('stretto')}: {mine.model_dump_json()}")
    print(f"TRL {json.dumps(peer['versions'])}: {json.dumps(peer['config'])}")
    for r in rows if not args.json else []:
        figures = "  ".join(f"{'not reached' if r[k] is None else format(r[k], '.2f'):>11}" for k in ("ours", "other"))
        ratio = "" if r["ratio"] is None else f"ratio {r['ratio']:.2f}"
        bar = "" if r["bar"] is None else f"bar {r['bar']:g}  {'pass' if r['pass'] else 'MISSED'}"
        print(f"{r['name']:<45} ours, TRL: {figures}  {ratio}  {bar}  {r.get('note', '')}".rstrip())
    if args.json:
        print(json.dumps({"rows": rows}))
    return 0 if all(r["pass"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
