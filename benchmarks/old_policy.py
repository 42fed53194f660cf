"""What exact old log-probabilities cost: memory, forward tokens and stall of the routes, measured beside formulas.

    python benchmarks/old_policy.py [--quick] [--json]

Rehearsals of a random model (virtual clock, real passes) with ``in_flight = keep``: lag bound S, m versions per
trajectory (longer responses meet more updates) and updates per second vary one at a time. W: bytes of the trainable
parameters. Of a trajectory with segments that end at e_1 < ... < e_m (prompt included) an exact route reads each
segment's beginning once, sum e_j tokens, about m P + n (m + 1) / 2 for a prompt of P and a response of n tokens;
``snapshots`` when it trains, the others when its versions end (and also of trajectories that never train).

* ``snapshots``: S W; as many passes a step as the batch has versions; the step waits for all of them.
* ``old_model``: the replica and a copy per version that hasn't ended; nothing waits but for tokens whose version hasn't
  ended when they train.
* ``interrupt``: W, while it lasts; engines wait for one another, then for the pass: a bubble a step, whose share of the
  run grows with the update rate.

Times are those of the virtual cluster (a forward pass takes a third of a training step's time per token). The random
model earns nothing and learns nothing: this is about cost alone.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import torch

from stretto.config.load import apply_overrides, validate
from stretto.kernel.events import Event, read_events
from stretto.run.launch import launch

ROUTES = ("snapshots", "old_model", "interrupt", "recompute", "ewma", "proxy")
BASE = {"response": 16, "lag": 4, "step_s": 0.2}
VARIED = {"lag": (1, 2, 4, 8), "response": (4, 8, 16, 32), "step_s": (0.05, 0.2, 0.8)}


def rehearse(out: Path, route: str, steps: int, *, response: int, lag: int, step_s: float) -> list[Event]:
    """The events of one run."""
    base: dict[str, Any] = {
        "out": str(out), "model": "tiny", "lag_bound": lag, "max_steps": steps, "prompts_per_step": 2, "group_size": 4,
        "sft": {"accuracy": 0.0, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 64},
        "env": {"name": "arithmetic"}, "sampling": {"max_new_tokens": response},
        "engine": {"max_num_seqs": 24, "max_model_len": 64, "decode_steps": 1},
        "objective": {"name": "decoupled-ppo", "reference": "old"}, "learner": {"old_policy": {"route": route}},
        "simulation": {"decode_base_s": 0.05, "step_base_s": step_s, "step_token_s": 3e-4, "publish_s": 0.01},
        "eval": {"tasks": 0}, "logging": {"report": False, "console": "off", "rollouts_per_step": 0},
    }  # fmt: skip
    launch(validate(apply_overrides(base, [])), "rehearse")
    return read_events(out)


def measured(events: list[Event]) -> dict[str, float]:
    """Of one run: largest memory; passes, forward tokens, stall and virtual seconds per step; the formula's tokens."""
    ends = [e["metrics"] for e in events if e["e"] == "StepEnd"]
    trained = {t for e in events if e["e"] == "StepStart" for t in e["traj"]}
    segments: list[int] = []  # where each ends, of trajectories that trained
    versions = []
    for e in events:
        if e["e"] == "TrajDone" and e["traj"] in trained:
            end = e["length"] - e["tokens"]
            versions.append(len(e["versions"]))
            for _, n in e["versions"]:
                end += n
                segments.append(end)
    steps, seconds = len(ends), events[-1]["t"]
    mean = {k: sum(m[f"old_policy/{k}"] for m in ends) / steps for k in ("passes", "forward_tokens", "stall_s")}
    return {
        "memory_bytes": max(m["old_policy/memory_bytes"] for m in ends), **mean,
        "formula_tokens": sum(segments) / steps, "versions_per_trajectory": sum(versions) / len(versions),
        "updates_per_s": steps / seconds, "stall_share": mean["stall_s"] * steps / seconds,
    }  # fmt: skip


def table(directory: Path, steps: int, quick: bool) -> list[dict[str, Any]]:
    """A row per route and setting."""
    rows = []
    for key, values in VARIED.items():
        for value in values[:: 3 if quick else 1]:
            for route in ROUTES:
                setting = {**BASE, key: value}
                out = directory / f"{key}-{value}-{route}"
                found = measured(rehearse(out, route, steps, **setting))  # type: ignore[arg-type]
                rows.append({"varied": key, "value": value, "route": route, **found})
                print(line(rows[-1]), flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    """One row as text."""
    return (
        f"{row['varied']:>8} {row['value']:>5g}  {row['route']:<10} m {row['versions_per_trajectory']:4.2f}  "
        f"{row['updates_per_s']:5.2f}/s  memory {row['memory_bytes'] / 1024:8.1f} KiB  passes {row['passes']:5.2f}  "
        f"tokens {row['forward_tokens']:7.1f} (sum e_j {row['formula_tokens']:7.1f})  stall {row['stall_s']:6.3f} s "
        f"= {100 * row['stall_share']:5.1f} %"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the ends of each range, fewer steps")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("stretto").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as directory:
        rows = table(Path(directory), 6 if arguments.quick else 20, arguments.quick)
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
