"""What a run gives at its end: the object that ``--json`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import NotRequired, TypedDict

from stretto.observe.summary import Evaluations, Staleness, Summary
from stretto.run import rundir


class Result(TypedDict):
    """Of a run. ``virtual_s``: None in real time; ``weights_sha256``: empty without a saved model; ``signal``: the
    one that ended it."""

    run: str
    steps: int
    version: int
    eval: Evaluations
    staleness: Staleness
    ledger: dict[str, int]
    collapse: int | None
    warnings: list[dict[str, str]]
    wall_s: float
    virtual_s: float | None
    weights_sha256: str
    events_sha256: str
    reason: str
    signal: NotRequired[str]


def result_of(mode: str, out: Path, reason: str, summary: Summary, events_sha256: str, wall_s: float) -> Result:
    """The run in ``out``, which has ended for this ``reason``."""
    return {
        "run": str(out),
        "steps": summary["steps"],
        "version": summary["version"],
        "eval": summary["eval"],
        "staleness": summary["staleness"],
        "ledger": summary["ledger"],
        "collapse": summary["collapse"],
        "warnings": summary["warnings"],
        "wall_s": round(wall_s, 3),
        "virtual_s": summary["clock_s"] if mode != "train" else None,
        "weights_sha256": rundir.weights_sha256(out / "model"),
        "events_sha256": events_sha256,
        "reason": reason,
    }
