"""Writes a realistic synthetic run directory."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import orjson

from .synthetic import Event


def write_run(run_dir: Path, events: list[Event], rollouts: bool = True, config: str | None = None) -> Path:
    """A run directory with these events, samples of its steps and a config."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "events.jsonl").write_bytes(b"".join(orjson.dumps(e) + b"\n" for e in events))
    (run_dir / "config.toml").write_text(config if config is not None else CONFIG)
    if rollouts:
        done = {e["traj"]: e for e in events if e["e"] == "TrajDone"}
        for start in (e for e in events if e["e"] == "StepStart"):
            write_rollouts(run_dir, start, done)
    return run_dir


def write_rollouts(run_dir: Path, start: Event, done: dict[int, Event]) -> None:
    from stretto.observe.samples import write_samples

    draw = random.Random(start["step"])
    write_samples(run_dir, start["step"], [_sample(done[i], start, draw) for i in start["traj"][:4]])


def _sample(event: Event, start: Event, draw: random.Random) -> dict[str, Any]:
    a, b = draw.randint(10, 99), draw.randint(10, 99)
    right = event["reward"] == 1.0
    answer = f" {a}+{b}: {a % 10}+{b % 10}={a % 10 + b % 10}, tens {a // 10}+{b // 10}. Answer: {a + b + (not right)}\n"
    tokens = [version for version, n in event["versions"] for _ in range(n)]
    pieces: list[dict[str, Any]] = [{"text": f"What is {a}+{b}?\n", "mask": False}]
    for k, letter in enumerate(answer):
        if k == 18:
            pieces.append({"text": f"[calculator: {a + b}]", "mask": False})
        version = tokens[k * len(tokens) // len(answer)]
        ratio = round(draw.lognormvariate(0, 0.03 * (1 + start["version"] - version)), 4)
        pieces.append({"text": letter, "mask": True, "version": version, "logprob": -round(draw.expovariate(3), 4),
                       "ratio": ratio})  # fmt: skip
    return {"step": start["step"], "version": start["version"], "trajectory": event["traj"], "group": event["group"],
            "reward": event["reward"], "advantage": 0.66 if right else -1.2, "pieces": pieces}  # fmt: skip


CONFIG = """name = "quickstart"
seed = 0
lag_bound = 3

[env]
name = "arithmetic"

[objective]
name = "tis"
cap = 2.0
"""
