"""Run a recipe many times with other settings, side by side; each run's figures are kept as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from stretto.config.load import load_config
from stretto.config.schema import RunConfig
from stretto.errors import ConfigError, DataError, StrettoError

_EXACT = ("order=submission", "control.in_flight=pin")  # each batch is sampled by the one version that it should be
_QUIET = ("logging.console=off", "logging.report=false", "logging.rollouts_per_step=0", "save_every=0")
_SERIES = ("reward/trained/mean", "entropy", "off_policy/kl", "ess", "staleness/mean", "staleness/max", "grad_norm")


@dataclass(frozen=True)
class Cell:
    """One run: ``key`` says which one it is (JSON values), ``settings`` are its overrides of the recipe. ``refresh``:
    batch k is sampled by version max(0, k - lag) (``constant``) or floor(k / S) S with S = lag + 1 (``window``)."""

    key: dict[str, Any]
    settings: tuple[str, ...]
    refresh: Literal["constant", "window"] = "constant"

    @property
    def name(self) -> str:
        """Of its directory."""
        readable = "-".join(f"{k}{v}" for k, v in self.key.items())
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in readable)
        digest = hashlib.sha256(json.dumps([self.key, self.settings], sort_keys=True).encode()).hexdigest()
        return f"{safe[:80]}-{digest[:8]}"


def run_cells(
    source: str,
    settings: Sequence[str],
    cells: Sequence[Cell],
    out: Path,
    *,
    jobs: int = 2,
    keep_runs: bool = False,
    done: Callable[[dict[str, Any]], None] = lambda record: None,
) -> list[dict[str, Any]]:
    """Rehearse each cell, ``jobs`` processes at a time; their records in the order of ``cells``.

    Records go to ``out/results.jsonl`` as they come: a sweep that was interrupted goes on where it was, and one of
    another recipe or other settings is refused (``ConfigError``). A cell whose run ends with an error has ``error`` in
    its record. Run directories are deleted unless ``keep_runs``.
    """
    for cell in cells:  # whatever is wrong with one is said before anything starts
        _load(source, settings, cell)
    if jobs < 1:
        raise ConfigError(f"--jobs = {jobs}: at least 1")
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, load_config(source, [*settings, *_EXACT]))
    records = _read(out / "results.jsonl")
    missing = [cell for cell in cells if cell.name not in records]
    for cell in cells:
        if cell.name in records:
            done(records[cell.name])
    if not missing:
        return [records[cell.name] for cell in cells]
    with _executor(min(jobs, len(missing))) as pool, (out / "results.jsonl").open("a") as file:
        try:
            _warm_starts(pool, source, settings, missing)
            futures = [pool.submit(_run_cell, source, list(settings), cell, out, keep_runs) for cell in missing]
            for future in as_completed(futures):
                record = future.result()
                file.write(json.dumps(record) + "\n")
                file.flush()
                records[record["name"]] = record
                done(record)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [records[cell.name] for cell in cells]


def _executor(jobs: int) -> Executor:
    """Processes; for a single job a thread of this one, which has imported everything already."""
    if jobs == 1:
        return ThreadPoolExecutor(1)
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_start)


def _load(source: str, settings: Sequence[str], cell: Cell, *more: str) -> RunConfig:
    """A cell's configuration. ``ConfigError`` if ``settings`` asks for what the sweep itself decides."""
    own = [*cell.settings, *_EXACT, *_QUIET, *more]
    decided = {text.partition("=")[0] for text in own}
    arms = "objective.name" in decided
    for text in settings:
        if (key := text.partition("=")[0].strip()) in decided or (arms and key.startswith("objective")):
            raise ConfigError(f"{text!r}: a sweep decides {key!r} itself; leave it out")
    return load_config(source, [*settings, *own])


def _claim(out: Path, config: RunConfig) -> None:
    """The directory belongs to one recipe."""
    path = out / "recipe.json"
    table = config.model_dump(mode="json")
    if path.exists() and json.loads(path.read_text()) != table:
        raise ConfigError(f"{out} holds a sweep of another recipe or other settings: choose another --out")
    if not path.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} isn't empty and holds no sweep: choose another --out")
    path.write_text(json.dumps(table, indent=1) + "\n")


def _read(path: Path) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    lines = path.read_text().split("\n")
    if lines[-1]:  # the last line was cut when the sweep was killed: its cell runs again
        path.write_text("".join(line + "\n" for line in lines[:-1]))
    try:
        records = [json.loads(line) for line in lines[:-1]]
    except ValueError as error:
        raise DataError(f"{path}: not JSON lines: {error}; delete it to run the sweep again") from error
    return {record["name"]: record for record in records}


def _start() -> None:
    """In each worker process: one thread, and interrupts are the parent's business."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _warm_starts(pool: Executor, source: str, settings: Sequence[str], cells: Iterable[Cell]) -> None:
    """Build each seed's model once, before runs that would all build it."""
    models = {}
    for cell in cells:
        config = _load(source, settings, cell)
        models[config.seed, config.model] = cell
    for future in [pool.submit(_build, source, list(settings), cell) for cell in models.values()]:
        future.result()


def _build(source: str, settings: list[str], cell: Cell) -> None:
    from stretto.wiring import load_environment

    load_environment(_load(source, settings, cell), "rehearse", _silent)


def _silent(line: str) -> None:
    return None


def _run_cell(source: str, settings: list[str], cell: Cell, out: Path, keep: bool) -> dict[str, Any]:
    from stretto.launch import launch

    run = out / "runs" / cell.name
    shutil.rmtree(run, ignore_errors=True)
    config = _load(source, settings, cell, f"out={run}")
    record: dict[str, Any] = {"name": cell.name, **cell.key, "lag_bound": config.lag_bound, "pid": os.getpid()}
    try:
        result = launch(config, "rehearse")
        record |= {name: result[name] for name in ("steps", "wall_s", "virtual_s")}
    except StrettoError as error:
        record["error"] = f"{type(error).__name__}: {error}"
    record |= _figures(run, config.lag_bound, cell.refresh)
    if not keep:
        shutil.rmtree(run, ignore_errors=True)
    return record


def _figures(run: Path, lag: int, refresh: str) -> dict[str, Any]:
    """Series per step, evaluations, and whether every step trained on data of exactly the lag."""
    path = run / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    steps = [row for row in rows if "reward/trained/mean" in row or "update/skipped" in row]
    series = {name: [_number(row.get(name)) for row in steps] for name in _SERIES}
    wanted = [min(k, lag) if refresh == "constant" else k % (lag + 1) for k in range(len(steps))]
    exact = series["staleness/max"] == wanted and series["staleness/mean"] == wanted
    accuracy = [(row["step"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row]
    return {"exact_lag": exact, "accuracy": accuracy, "series": series}


def _number(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 6)
