"""Run a recipe many times with other settings, side by side; each run's figures are kept as one line of JSON."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypedDict, cast

from stretto.config.load import load_config
from stretto.config.schema import RunConfig
from stretto.kernel.errors import ConfigError, DataError, StrettoError
from stretto.kernel.jsonl import cut_torn_line, read_jsonl
from stretto.kernel.process_map import ProcessMap
from stretto.observe.metrics import read_metrics
from stretto.run import rundir
from stretto.run.checks import check

_EXACT = ("order=submission", "control.in_flight=pin")  # each batch is sampled by the one version that it should be
_QUIET = ("logging.console=off", "logging.report=false", "logging.rollouts_per_step=0", "save_every=0")
_SERIES = ("reward/trained/mean", "entropy", "off_policy/kl", "ess", "staleness/mean", "staleness/max", "grad_norm")


_KEYS = {"name", "exact_lag", "accuracy", "series"}


class Key(TypedDict, total=False):
    """Which run of a sweep it is."""

    arm: str
    lag: int
    seed: int
    sync_interval: int
    rate: float


class Ended(TypedDict, total=False):
    """How a run ended: what it took, or the error that it ended with."""

    steps: int
    wall_s: float
    virtual_s: float
    error: str


class Figures(TypedDict):
    """What a run did. ``accuracy``: (step, accuracy) of each evaluation; ``series`` [steps] by metric."""

    exact_lag: bool
    accuracy: list[Sequence[float]]
    series: dict[str, list[float | None]]


class Record(Key, Ended, Figures):
    """A run's line in ``results.jsonl``."""

    name: str
    lag_bound: int
    pid: int


@dataclass(frozen=True)
class Cell:
    """One run: ``key`` says which one it is (JSON values), ``settings`` are its overrides of the recipe. ``refresh``:
    batch k is sampled by version max(0, k - lag) (``constant``) or floor(k / S) S with S = lag + 1 (``window``)."""

    key: Key
    settings: tuple[str, ...]
    refresh: Literal["constant", "window"] = "constant"

    @property
    def name(self) -> str:
        """Name of the cell's run directory."""
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
    done: Callable[[Record], None] = lambda record: None,
) -> list[Record]:
    """Rehearse each cell, ``jobs`` processes at a time; their records in the order of ``cells``.

    Records go to ``out/results.jsonl`` as they come: a sweep that was interrupted goes on where it was, and one of
    another recipe or other settings is refused (``ConfigError``), as is one in which another sweep is at work. A cell
    whose run ends with an error of its own has ``error`` in its record; bad settings or data and a full disk end the
    sweep instead. Run directories are deleted unless ``keep_runs``.
    """
    _check(source, settings, cells)
    if jobs < 1:
        raise ConfigError(f"--jobs = {jobs}: at least 1")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ConfigError(f"{out} is not a directory: choose another --out") from None
    config = load_config(source, [*settings, *_EXACT], "rehearse")
    _claim(out, config)
    with rundir.hold(out):
        _save_claim(out, config)
        return _run(source, settings, cells, out, jobs, keep_runs, done)


def _run(
    source: str,
    settings: Sequence[str],
    cells: Sequence[Cell],
    out: Path,
    jobs: int,
    keep_runs: bool,
    done: Callable[[Record], None],
) -> list[Record]:
    """``run_cells``, in a directory that is ours alone."""
    records = _read(out / "results.jsonl")
    missing = [cell for cell in cells if cell.name not in records]
    for cell in cells:
        if cell.name in records:
            done(records[cell.name])
    if not missing:
        return [records[cell.name] for cell in cells]
    with ProcessMap(min(jobs, len(missing))) as pool, (out / "results.jsonl").open("a") as file:
        _sft_models(pool, source, settings, missing)
        for record in pool.results(_run_cell, [(source, list(settings), cell, out, keep_runs) for cell in missing]):
            file.write(json.dumps(record) + "\n")
            file.flush()
            records[record["name"]] = record
            done(record)
    return [records[cell.name] for cell in cells]


def _load(source: str, settings: Sequence[str], cell: Cell, *more: str) -> RunConfig:
    """A cell's configuration. ``ConfigError`` if ``settings`` asks for what the sweep itself decides."""
    own = [*cell.settings, *_EXACT, *_QUIET, *more]
    decided = {text.partition("=")[0] for text in own}
    arms = "objective.name" in decided
    for text in settings:
        if (key := text.partition("=")[0].strip()) in decided or (arms and key.startswith("objective")):
            raise ConfigError(f"{text!r}: a sweep decides {key!r} itself; leave it out")
    return load_config(source, [*settings, *own], "rehearse")


def _check(source: str, settings: Sequence[str], cells: Sequence[Cell]) -> None:
    """Whatever is wrong with a cell is said before anything starts, and never taken for a run that failed."""
    seen = set()
    for cell in cells:
        config = _load(source, settings, cell)
        kind = tuple(text for text in cell.settings if not text.startswith("seed="))
        if kind not in seen:
            seen.add(kind)
            check(config, "rehearse")


def _claim(out: Path, config: RunConfig) -> None:
    """The directory belongs to one recipe."""
    path = out / "recipe.json"
    try:
        found = json.loads(path.read_text()) if path.exists() else None
    except ValueError as error:
        raise DataError(f"{path} can't be read: {error}; choose another --out, or delete {out}") from error
    if found is not None and found != config.model_dump(mode="json"):
        raise ConfigError(f"{out} holds a sweep of another recipe or other settings: choose another --out")
    if found is None and any(not p.name.startswith(rundir.LOCK) for p in out.iterdir()):
        raise ConfigError(f"{out} isn't empty and holds no sweep: choose another --out")


def _save_claim(out: Path, config: RunConfig) -> None:
    """Write down which recipe it is, whole or not at all."""
    path = out / "recipe.json"
    if not path.exists():
        part = out / f"{rundir.LOCK}.recipe"
        part.write_text(json.dumps(config.model_dump(mode="json"), indent=1) + "\n")
        part.replace(path)


def _read(path: Path) -> dict[str, Record]:
    if not path.exists():
        return {}
    cut_torn_line(path)  # of a sweep that was killed: its cell runs again
    records: dict[str, Record] = {}
    for number, record in read_jsonl(path, loads=json.loads):
        if not record.keys() >= _KEYS:
            raise DataError(f"{path}:{number}: not a run's record; delete the line to run that one again")
        kept = cast(Record, record)
        records[kept["name"]] = kept
    return records


def _sft_models(pool: ProcessMap, source: str, settings: Sequence[str], cells: Iterable[Cell]) -> None:
    """Build each seed's model once, before runs that would all build it."""
    models = {}
    for cell in cells:
        config = _load(source, settings, cell)
        models[config.seed, config.model] = cell
    for _ in pool.results(_build, [(source, list(settings), cell) for cell in models.values()]):
        pass


def _build(source: str, settings: list[str], cell: Cell) -> None:
    from stretto.run.wiring import load_model

    load_model(check(_load(source, settings, cell), "rehearse"), _silent)


def _silent(line: str) -> None:
    return None


def _run_cell(source: str, settings: list[str], cell: Cell, out: Path, keep: bool) -> Record:
    from stretto.run.launch import launch

    run = out / "runs" / cell.name
    shutil.rmtree(run, ignore_errors=True)
    config = _load(source, settings, cell, f"out={run}")
    try:
        result = launch(config, "rehearse", saves=False)
        ended: Ended = {"steps": result["steps"], "wall_s": result["wall_s"], "virtual_s": result["virtual_s"] or 0.0}
    except StrettoError as error:
        if type(error) in (ConfigError, DataError, StrettoError):  # of settings, data or the disk: not the method's
            raise
        ended = {"error": f"{type(error).__name__}: {error}"}
    record: Record = {
        "name": cell.name, **cell.key, "lag_bound": config.lag_bound, "pid": os.getpid(), **ended,
        **_figures(run, config.lag_bound, cell.refresh),
    }  # fmt: skip
    if not keep:
        shutil.rmtree(run, ignore_errors=True)
    return record


def _figures(run: Path, lag: int, refresh: str) -> Figures:
    """Series per step, evaluations, and whether every step trained on data of exactly the lag."""
    rows = read_metrics(run) if (run / "metrics.jsonl").exists() else []
    steps = [row for row in rows if "reward/trained/mean" in row or "update/skipped" in row]
    series = {name: [_number(row.get(name)) for row in steps] for name in _SERIES}
    wanted = [min(k, lag) if refresh == "constant" else k % (lag + 1) for k in range(len(steps))]
    exact = series["staleness/max"] == wanted and series["staleness/mean"] == wanted
    accuracy: list[Sequence[float]] = [(row["step"], row["eval/accuracy"]) for row in rows if "eval/accuracy" in row]
    return {"exact_lag": exact, "accuracy": accuracy, "series": series}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), 6)
