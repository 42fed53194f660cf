"""Publish: seconds to stage, fetch (verified) and load a version into live parameters, against a plain copy.

``python benchmarks/publish.py [--json]``: one row per size; ``bar`` is the limit in seconds for ``ours``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from stretto.data.identity import PolicyVersion
from stretto.weights.memory import SharedMemory

SIZES = {"publish-1M": (1_000_000, 0.005, 30), "publish-135M": (135_000_000, 0.5, 5)}


def parameters(total: int) -> dict[str, Tensor]:
    """About ``total`` float32 parameters in matrices of a transformer's proportions."""
    width = 128 if total < 10_000_000 else 576
    rows = max(total // (width * 12), 1)
    generator = torch.Generator().manual_seed(0)
    return {f"layer.{i}.weight": torch.randn(rows, width, generator=generator) for i in range(12)}


def median_s(work: Callable[[], object], repeats: int) -> float:
    """Median seconds of ``work`` after one warm-up call."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(name: str, total: int, bar: float, repeats: int) -> dict[str, object]:
    """Measure one size."""
    weights = parameters(total)
    live = {key: torch.empty_like(value) for key, value in weights.items()}
    transport = SharedMemory.open(Path())
    staged = transport.stage(PolicyVersion(), weights)

    def publish() -> None:
        nonlocal staged
        before, staged = staged, transport.stage(PolicyVersion(number=staged.version.number + 1), weights)
        for key, value in transport.fetch(staged).items():
            live[key].copy_(value)
        transport.release(before.version)

    def copy() -> None:
        for key, value in weights.items():
            live[key].copy_(value)

    ours, other = median_s(publish, repeats), median_s(copy, repeats)
    if not all(torch.equal(live[key], value) for key, value in weights.items()):
        raise SystemExit(f"{name}: the live parameters differ from the published ones")
    transport.close()
    return {"name": name, "ours": ours, "other": other, "ratio": ours / other, "bar": bar, "pass": ours <= bar}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row(name, *size) for name, size in SIZES.items()]
    for r in rows:
        print(f"{r['name']:14} ours {r['ours']:.4f} s  copy {r['other']:.4f} s  ratio {r['ratio']:.1f}  "
              f"bar {r['bar']} s  {'pass' if r['pass'] else 'FAIL'}")  # fmt: skip
    if arguments.json:
        print(json.dumps({"rows": rows}))
    raise SystemExit(0 if all(r["pass"] for r in rows) else 1)


if __name__ == "__main__":
    main()
