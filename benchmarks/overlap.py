"""Does overlap pay? Asynchronous against synchronous steps per second on the quickstart model, with and without waits.

    python benchmarks/overlap.py [--quick] [--json]

With a tool wait of 0.5 s (median, lognormal) a synchronous step waits for the slowest of its 256 rollouts. The bound of
the asynchronous loop is its slowest stage alone: engine, learner, or the waits themselves at the loop's concurrency.
Without waits the bound is what two perfectly overlapped processes would give. The time that a stage needs is the CPU
time of its process per step, read in the same run; engine and learner run by themselves are reported beside it.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from stretto.config.load import load_config
from stretto.config.schema import RunConfig
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.build import build_environment
from stretto.kernel.events import read_events
from stretto.models.resolve import resolve_model
from stretto.models.tokenizer import light_tokenizer

HERE = Path(__file__).parent
MEDIAN_S, SIGMA = 0.5, 0.5
WAIT_LAG, PLAIN_LAG = 96, 4
"""The bound must cover the longest of a few thousand waits (4 s), or the learner stands still for it now and then."""
WARM_UP_SHARE = 0.3
ROLES = ("engine", "learner", "orchestrator")
CORES = 2


@dataclass
class Waiting(Arithmetic):
    """Arithmetic whose answers are scored after a lognormal wait."""

    median_s: float = MEDIAN_S
    sigma: float = SIGMA

    async def rollout(self, client: Any, task: Any) -> Any:
        """As arithmetic's, then the wait."""
        trajectory = await super().rollout(client, task)
        normal = statistics.NormalDist().inv_cdf(client.uniform(7))
        await client.sleep(self.median_s * math.exp(self.sigma * normal), "tool")
        return trajectory


def train(settings: list[str], steps: int) -> dict[str, float]:
    """A run of `stretto train`, measured after its warm-up: steps per second, and per step the CPU seconds of engine,
    learner and orchestrator (from the kernel's account of their processes, read while the run goes on)."""
    out = Path(tempfile.mkdtemp(prefix="overlap-"))
    command = [sys.executable, "-m", "stretto.cli", "train", "quickstart", f"out={out}/run", f"max_steps={steps}",
               "eval.tasks=0", "logging.report=false", "logging.console=off", "workers.own_cores=true",
               *settings]  # fmt: skip
    path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH", ""))))
    environment = {**os.environ, "PYTHONPATH": path}
    rows = out / "run" / "metrics.jsonl"
    first, last = int(steps * WARM_UP_SHARE), steps - 2
    with open(out / "output", "wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        before = _at_step(process, rows, first)
        after = _at_step(process, rows, last)
        if process.wait():
            raise SystemExit(f"{' '.join(command)}\n{(out / 'output').read_text()}")
    starts = [e for e in read_events(out / "run") if e["e"] == "StepStart"][first:]
    shutil.rmtree(out)
    done = after["steps"] - before["steps"]
    figures = {"steps_per_s": done / (after["clock"] - before["clock"])}
    for role in ROLES:
        figures[f"{role}_cpu_s"] = (after[role] - before[role]) / done
    figures["staleness"] = statistics.mean(e["staleness"]["total"] / e["tokens"] for e in starts)
    return figures


def _at_step(process: subprocess.Popen[bytes], log: Path, step: int) -> dict[str, float]:
    """Once ``step`` steps are done: how many are, the clock, and the CPU seconds that each process has used."""
    done, at = 0, 0
    while process.poll() is None:
        if log.exists():
            with open(log, "rb") as lines:  # what is new only: this process shares the cores with what it measures
                lines.seek(at)
                new = lines.read()
            whole = new.rfind(b"\n") + 1
            done, at = done + new[:whole].count(b'"update/skipped"'), at + whole
        if done >= step:
            now = {"clock": time.monotonic(), "steps": float(done)}
            return now | {role: _cpu_s(process.pid, role) for role in ROLES}
        time.sleep(0.1)
    raise SystemExit(f"the run ended before step {step}: {process.args}")


def _cpu_s(parent: int, role: str) -> float:
    """CPU seconds of the worker process of this role, or of their parent."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if role == "orchestrator":
            ours = path.name == str(parent)
        else:
            child = int(fields[1]) == parent and b"stretto.runtime.workers.child" in command
            ours = child and any(part.startswith(role.encode()) for part in command)
        if ours:
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise SystemExit(f"no {role} process under {parent}")


def requests_of(config: RunConfig, model_dir: Path, step: int) -> Any:
    """The requests of one batch."""
    from stretto.rollout.types import Request, SamplingParams

    env = build_environment(config)
    tokenizer = light_tokenizer(model_dir)
    env.bind(tokenizer, 0)
    sampling = SamplingParams(max_new_tokens=config.sampling.max_new_tokens, stop=tokenizer.eos_ids)
    n, g = config.prompts_per_step, config.group_size
    tasks = [env.task(step * n + i) for i in range(n)]
    return [
        Request(id, id, step * n + i, task.prompt, sampling, noise_key=id)
        for i, task in enumerate(tasks) for id in range(step * n * g + i * g, step * n * g + (i + 1) * g)
    ]  # fmt: skip


def engine_alone(config: RunConfig, model_dir: Path, seconds: float, go: Any, out: Any) -> None:
    """Batches per second that an engine makes by itself, weights loaded after each."""
    import torch

    torch.set_num_threads(1)
    from stretto.models.load import load_policy, named_weights
    from stretto.rollout.build import build_engine

    engine = build_engine(model_dir, config.engine, 0, light_tokenizer(model_dir).eos_ids)
    weights = {n: t.detach().clone() for n, t in named_weights(load_policy(model_dir)).items()}
    batches = [requests_of(config, model_dir, step) for step in range(8)]
    engine.load(0, weights, "keep")
    go.wait()
    start, done = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        engine.add(batches[done % 8])
        while engine.has_work:
            engine.advance(config.engine.decode_steps)
        done += 1
        engine.load(done, weights, "keep")
    out.put(("engine", done / (time.monotonic() - start)))


def learner_alone(config: RunConfig, model_dir: Path, seconds: float, go: Any, out: Any) -> None:
    """Steps per second that a learner makes by itself on real batches, weights staged after each."""
    import torch

    torch.set_num_threads(1)
    from stretto.data.columns import pack
    from stretto.data.trajectory import Transcript
    from stretto.learner.build import build_learner
    from stretto.rollout.build import build_engine
    from stretto.weights.memory import SharedMemory

    learner = build_learner(model_dir, config, 10**9)
    engine = build_engine(model_dir, config.engine, 0, light_tokenizer(model_dir).eos_ids)
    engine.load(0, learner.weights(), "keep")
    batches = []
    for step in range(4):
        requests = {r.id: r for r in requests_of(config, model_dir, step)}
        engine.add(list(requests.values()))
        trajectories = []
        while engine.has_work:
            for i, completion in engine.advance(8).finished:
                transcript = Transcript(i, requests[i].group)
                transcript.observe(requests[i].tokens)
                transcript.sample(completion)
                trajectories.append(transcript.finish(float(i % 2)))
        batches.append(pack(sorted(trajectories, key=lambda t: t.id)))
    transport = SharedMemory.open(Path())
    staged = learner.stage(transport.stage)
    go.wait()
    start, done = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        learner.step(batches[done % 4])
        before, staged = staged, learner.stage(transport.stage)
        transport.release(before.version)
        done += 1
    out.put(("learner", done / (time.monotonic() - start)))


def alone(config: RunConfig, model_dir: Path, seconds: float, together: bool) -> dict[str, float]:
    """Rates of engine and learner by themselves: one after the other, or at the same time without talking."""
    context = multiprocessing.get_context("spawn")
    rates: dict[str, float] = {}
    jobs = [engine_alone, learner_alone]
    for group in [jobs] if together else [[job] for job in jobs]:
        out, go = context.Queue(), context.Barrier(len(group))
        children = [context.Process(target=job, args=(config, model_dir, seconds, go, out)) for job in group]
        for child in children:
            child.start()
        rates |= dict(out.get() for _ in children)
        for child in children:
            child.join()
    return rates


def bound(run: dict[str, float]) -> float:
    """Steps per second that nothing can exceed: engine and learner overlap perfectly, no core is ever idle."""
    return 1 / max(run["engine_cpu_s"], run["learner_cpu_s"], sum(run[f"{role}_cpu_s"] for role in ROLES) / CORES)


def row(name: str, turns: list[tuple[float, float]], bar: float, **more: Any) -> dict[str, Any]:
    """One figure with its bar: the median ratio over the turns, and the rates of that turn."""
    ours, other = sorted(turns, key=lambda pair: pair[0] / pair[1])[len(turns) // 2]
    ratios = [round(a / b, 3) for a, b in turns]
    return {"name": name, "ours": round(ours, 3), "other": round(other, 3), "ratio": round(ours / other, 3), "bar": bar,
            "pass": ours / other >= bar, "ratios": ratios, **more}  # fmt: skip


def main() -> int:
    """Run all; exit status 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    args = parser.parse_args()
    steps, seconds, repeats = (100, 4.0, 1) if args.quick else (200, 6.0, 3)
    config = load_config("quickstart")
    model_dir = resolve_model(config, build_environment(config), lambda line: print(line, file=sys.stderr))
    rows = []

    # What two perfectly overlapped processes would give: each needs its CPU seconds per step on a core of its own, so
    # the slower one sets the pace, or both cores' full use does, where the orchestrator's work needs it. All are read
    # in the measured run itself: shared machines drift by a quarter within
    # minutes, and a stage measured by itself (``apart``, reported beside) is then no bound.
    wait = ["env.name=overlap:Waiting"]
    waits = (WAIT_LAG + 1) / (MEDIAN_S * math.exp(SIGMA**2 / 2))
    turns: dict[str, list[tuple[float, float]]] = {"overlap": [], "sync": [], "wait sync": [], "wait bound": []}
    notes: dict[str, Any] = {}
    for _ in range(repeats):
        apart = alone(config, model_dir, seconds, together=True)
        plain = train([f"lag_bound={PLAIN_LAG}"], steps)
        turns["overlap"].append((plain["steps_per_s"], bound(plain)))
        sync = train(["lag_bound=0"], steps // 2)
        turns["sync"].append((plain["steps_per_s"], sync["steps_per_s"]))
        slow = train([*wait, f"lag_bound={WAIT_LAG}"], steps)
        turns["wait bound"].append((slow["steps_per_s"], min(bound(slow), waits)))
        slow_sync = train([*wait, "lag_bound=0"], max(10, steps // 10))
        turns["wait sync"].append((slow["steps_per_s"], slow_sync["steps_per_s"]))
        notes = {"apart": apart, "plain": plain, "slow": slow}
    rows.append(row("no wait: asynchronous / two perfectly overlapped processes", turns["overlap"], 0.9, **notes))
    rows.append(row("no wait: asynchronous / synchronous", turns["sync"], 1.0))
    rows.append(row("wait 0.5 s: asynchronous / synchronous", turns["wait sync"], 4.0))
    rows.append(row("wait 0.5 s: asynchronous / slowest stage alone", turns["wait bound"], 0.8))
    for r in rows:
        if not args.json:
            print(f"{r['name']:<62} {r['ours']:8.2f} / {r['other']:8.2f} steps/s  ratio {r['ratio']:6.2f}  "
                  f"bar {r['bar']:.1f}  {'pass' if r['pass'] else 'MISSED'}")  # fmt: skip
    if args.json:
        print(json.dumps({"rows": rows}))
    return 0 if all(r["pass"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
