"""The price of an objective: loss and backward against PPO's, and recursions over tokens against a time.

    python benchmarks/objectives.py [--quick] [--json]

One step on [64, 512] tokens with a vocabulary of 30,000 is the head (log-softmax over the vocabulary and gather, as the
learner does it, and its backward pass down to weights and hidden states of width 16) and the objective's own part
(advantages, statistics of the step, loss, gradient down to the log-probabilities). The head's work is the same for all,
and hidden states of a real model only make it dearer, so it is measured by itself, and ``ratio`` is
(head + own) / (head + PPO's own). Own parts take turns, all objectives in each turn; medians of CPU seconds on one
thread. ``own_ratio`` leaves the head out. KLPO's draws come from the same softmax: its head scores two tokens a
position, in turns with the other one. Without ``--quick``, the step with the dearest own part and PPO's also run whole,
in turns; with it, the head is measured on 2 of the 64 rows, and so is the memory.

Rows "extra forward" have no bar: what a method pays where nothing else gives it what it needs, a forward pass through
the head alone (a real model adds its trunk).

Scans: float32 [256, 4096], one core, the whole estimator with its handling of the mask. Their bar is a time, 20 ms; the
best of all turns counts, since what else the machine does can only make a turn slower.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.models.logp import token_logp
from stretto.objectives import names
from stretto.objectives.table import example
from stretto.objectives.temporal import brace, copc, gae, vtrace

ROWS, WIDTH, VOCABULARY, HIDDEN = 64, 512, 30_000, 16
BAR, SCAN_BAR_MS, MEMORY_BAR_GB = 1.05, 20.0, 10.0
SCAN_SHAPE = (256, 4096)
OPTIONS: dict[str, dict[str, Any]] = {"dr-grpo": {"max_length": WIDTH}}
EXTRA = {
    "start": "log-probabilities at the start of the step, for its advantages",
    "proximal": "log-probabilities at the start of the step; no pass of its own with one optimizer step a batch",
    "old": "log-probabilities at the version that sampled, if the route doesn't keep them",
    "statistics": "log-probabilities of the whole step before it is split into micro-batches",
}


def cpu_s(work: Callable[[], Any]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work()
    return time.process_time() - start


def in_turns(works: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """CPU seconds of each, all of them in every turn, after a call apiece to warm up."""
    for work in works.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(turns):
        for name, work in works.items():
            times[name].append(cpu_s(work))
    return times


def step_batch() -> tuple[TokenBatch, Tensor]:
    """Every field an objective may want, and current log-probabilities; groups of eight."""
    g = torch.Generator().manual_seed(0)

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(ROWS, WIDTH, generator=g)

    mask = torch.ones(ROWS, WIDTH, dtype=torch.bool)
    mask[:, 0] = False  # nothing precedes it
    logp = -0.1 - 3 * torch.rand(ROWS, WIDTH, generator=g)
    rewards = torch.zeros(ROWS, WIDTH)
    rewards[:, -1] = torch.randint(0, 2, (ROWS,), generator=g).float()
    others = logp[..., None] - 1
    batch = TokenBatch(
        mask=mask,
        tokens=torch.randint(VOCABULARY, (ROWS, WIDTH), generator=g),
        rewards=rewards,
        logp_behavior=logp + normal(0.2),
        logp_proximal=logp + normal(0.05),
        logp_old=logp + normal(0.1),
        entropy=torch.rand(ROWS, WIDTH, generator=g) * 2,
        values=normal(0.5),
        version=8,
        versions=torch.randint(3, 8, (ROWS, WIDTH), generator=g),
        group=torch.arange(ROWS) // 8,
        trajectory=torch.arange(ROWS),
        reward_fast=rewards.sum(1),
        reward_slow=torch.full((ROWS,), math.nan),
        trained_at=torch.full((ROWS,), -1),
        sampled_tokens=torch.zeros(ROWS, WIDTH, 1, dtype=torch.int64),
        sampled_logp_behavior=others,
        top_tokens=torch.zeros(ROWS, WIDTH, 1, dtype=torch.int64),
        top_logp_behavior=others,
    )
    return batch, logp


def own_part(objective: Any, batch: TokenBatch, logp: Tensor) -> Callable[[], Any]:
    """Advantages, loss and gradient down to the log-probabilities."""

    def work() -> None:
        now = logp.clone().requires_grad_()
        inputs, extra = [now], {}
        for need in {"sampled", "top"} & objective.needs:
            extra[f"{need}_logp_current"] = batch.need(f"{need}_logp_behavior")[0].clone().requires_grad_()
            inputs.append(extra[f"{need}_logp_current"])
        advantages = objective.advantages(batch, logp)
        torch.autograd.grad(objective(batch.replace(**extra), now, None, advantages).total, inputs)

    return work


def head_part(rows: int, tokens: int, backward: bool) -> Callable[[], Any]:
    """Log-probabilities of ``tokens`` tokens a position, and the gradient in weights and hidden states."""
    g = torch.Generator().manual_seed(1)
    n = rows * (WIDTH - 1)
    hidden = torch.randn(n, HIDDEN, generator=g, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=g).mul_(0.1).requires_grad_()
    ids = torch.randint(VOCABULARY, (n, tokens), generator=g)

    def work() -> None:
        with torch.set_grad_enabled(backward):
            logp, _ = token_logp(hidden, weight, ids)
        if backward:
            torch.autograd.grad(logp.sum(), (hidden, weight))

    return work


def row(name: str, ours: float, other: float, bar: float | None, **more: Any) -> dict[str, Any]:
    """One row; without a bar it is information and passes."""
    ratio = ours / other
    return {"name": name, "ours": ours, "other": other, "ratio": ratio, "bar": bar,
            "pass": bar is None or ratio <= bar, **more}  # fmt: skip


def whole_step(objective: Any, batch: TokenBatch, now: Tensor) -> Callable[[], Any]:
    """Head, objective and backward in one piece; advantages at ``now``."""
    g = torch.Generator().manual_seed(1)
    n = ROWS * (WIDTH - 1)
    hidden = torch.randn(n, HIDDEN, generator=g, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=g).mul_(0.1).requires_grad_()
    ids = batch.need("tokens")[0][batch.mask]

    def work() -> None:
        logp = torch.zeros(ROWS, WIDTH).masked_scatter(batch.mask, token_logp(hidden, weight, ids)[0])
        advantages = objective.advantages(batch, now)
        torch.autograd.grad(objective(batch, logp, None, advantages).total, (hidden, weight))

    return work


def objective_rows(quick: bool) -> list[dict[str, Any]]:
    """Each objective's step against PPO's, in seconds; then what extra forward passes cost."""
    rows = 2 if quick else ROWS
    works = {"one": head_part(rows, 1, True), "two": head_part(rows, 2, True), "forward": head_part(rows, 1, False)}
    times = in_turns(works, 5 if quick else 3)
    head = statistics.median(times["one"]) * ROWS / rows

    def relative(key: str) -> float:
        return statistics.median(x / y for x, y in zip(times[key], times["one"], strict=True))

    heads, forward = {"one": head, "two": head * relative("two")}, head * relative("forward")
    batch, logp = step_batch()
    objectives = {name: example(name, **OPTIONS.get(name, {})) for name in names()}
    parts = in_turns({name: own_part(o, batch, logp) for name, o in objectives.items()}, 5 if quick else 21)
    own = {name: statistics.median(parts[name]) for name in objectives}
    ppo = heads["one"] + own["ppo"]
    out, extra = [], []
    for name, objective in objectives.items():
        ours = heads["two" if {"sampled", "top"} & objective.needs else "one"] + own[name]
        more = {"own_ms": own[name] * 1e3, "own_ratio": own[name] / own["ppo"]}
        out.append(row(name, ours, ppo, BAR, **more))
        for need in sorted(EXTRA.keys() & objective.needs):
            extra.append(row(f"{name}, extra forward: {need}", ours + forward, ppo, None, note=EXTRA[need]))
    if not quick:
        dearest = max((name for name in own if not {"sampled", "top"} & objectives[name].needs), key=own.__getitem__)
        both = in_turns({name: whole_step(objectives[name], batch, logp) for name in (dearest, "ppo")}, 2)
        ours, ppo = min(both[dearest]), min(both["ppo"])
        out.append(row(f"{dearest}, the whole step", ours, ppo, BAR, note="head, objective and backward in one piece"))
    return out + extra


def scan_rows(quick: bool) -> list[dict[str, Any]]:
    """Estimators over time on three kinds of mask, in milliseconds."""
    g = torch.Generator().manual_seed(2)
    values, rewards = torch.randn(2, *SCAN_SHAPE, generator=g)
    w = torch.randn(SCAN_SHAPE, generator=g).mul_(0.3).exp_()
    at = torch.arange(SCAN_SHAPE[1])
    ends = torch.randint(SCAN_SHAPE[1] // 2, SCAN_SHAPE[1] + 1, (SCAN_SHAPE[0], 1), generator=g)
    masks = {
        "every token": torch.ones(SCAN_SHAPE, dtype=torch.bool),
        "one response": (at >= 256) & (at < ends),
        "random mask": torch.rand(SCAN_SHAPE, generator=g) < 0.5,
    }
    works: dict[str, Callable[[], Any]] = {}
    for kind, mask in masks.items():
        terminal = torch.zeros(SCAN_SHAPE).scatter(1, (ends - 1).clamp(min=0), rewards[:, :1])
        batch = TokenBatch(mask=mask, rewards=rewards if kind == "random mask" else terminal, values=values)
        works[f"GAE, {kind}"] = lambda b=batch: gae(b, 1.0, 0.95)
        works[f"V-trace, {kind}"] = lambda b=batch: vtrace(b, w, 1.0, 1.0, 1.0, 1.0)
        works[f"BRACE, {kind}"] = lambda b=batch: brace(b, w, 100, 1.2, 1.1, 1.0, 1.0)
        works[f"COPC trace, {kind}"] = lambda b=batch: copc(b, w, "trace", (0.5, 2.0), 1.0, 1.0)
    out = []
    for name, times in in_turns(works, 15 if quick else 40).items():
        best = min(times) * 1e3
        out.append({"name": f"{name}, ms", "ours": best, "other": SCAN_BAR_MS, "ratio": best / SCAN_BAR_MS,
                    "bar": SCAN_BAR_MS, "pass": best <= SCAN_BAR_MS, "median": statistics.median(times) * 1e3,
                    "note": "a time in ms"})  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the head on fewer rows, fewer turns: under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    scans = scan_rows(arguments.quick)
    rows = objective_rows(arguments.quick)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    memory = row("peak memory, GB", peak, MEMORY_BAR_GB, 1.0)
    for r in rows:
        own = f"own part {r['own_ms']:6.2f} ms, {r['own_ratio']:5.2f} of PPO's" if "own_ms" in r else r["note"]
        verdict = ("pass" if r["pass"] else "FAIL") if r["bar"] else "    "
        print(f"{r['name']:36} {r['ours']:7.3f} s  ppo {r['other']:7.3f} s  ratio {r['ratio']:.4f}  {verdict}  {own}")
    for r in scans:
        print(f"{r['name']:36} {r['ours']:7.2f} ms (median {r['median']:.2f})  bar {r['bar']:.0f} ms, a time  "
              f"{'pass' if r['pass'] else 'FAIL'}")  # fmt: skip
    print(f"{memory['name']:36} {memory['ours']:7.2f}  bar {MEMORY_BAR_GB:.0f}  {'pass' if memory['pass'] else 'FAIL'}")
    rows += [*scans, memory]
    if arguments.json:
        print(json.dumps({"rows": rows}))
    raise SystemExit(0 if all(r["pass"] for r in rows) else 1)


if __name__ == "__main__":
    main()
