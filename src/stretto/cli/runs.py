"""Commands on runs: train, rehearse, simulate, check, report, and what there is to run."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer
from rich.table import Table
from rich.text import Text

from stretto.cli.app import DryRun, EventName, Json, Overrides, Resume, RunDir, Source, app, err, out
from stretto.config.load import RESUMABLE, load_config, load_resumed, read_source, recipe_names, to_toml
from stretto.config.schema import RunConfig
from stretto.kernel.errors import ConfigError, did_you_mean
from stretto.kernel.signals import Interrupted, hear
from stretto.observe.terminal import stdout_for

if TYPE_CHECKING:
    from stretto.run.result import Result

_NOTHING_LOST = "Nothing had begun yet, so nothing is lost: the same command starts it again"


def _split(source: str | None, overrides: list[str] | None) -> tuple[str | None, list[str]]:
    """With --resume the first positional may already be an override."""
    settings = list(overrides or [])
    if source is not None and "=" in source and not Path(source).exists():
        return None, [source, *settings]
    return source, settings


def _configure(source: str | None, settings: list[str], resume: Path | None, mode: str | None = None) -> RunConfig:
    from stretto.run import rundir

    if resume is None:
        if source is None:
            raise ConfigError(f"which recipe or file? Recipes: {', '.join(recipe_names())}")
        config = load_config(source, settings, mode)
        if config.out is None and (place := rundir.next_free(Path(config.out_dir))) != Path(config.out_dir):
            err.print(f"{config.out_dir} is taken: this run goes to {place} (out=... says where else)")
            config.out = str(place)
        return config
    if source is not None:
        raise ConfigError(f"--resume takes its configuration from the run; leave out {source!r}")
    run = rundir.run_of(resume)
    for text in settings:
        key = text.split("=")[0].strip()
        if key == "logging.events":
            raise ConfigError(f"{text!r}: a resumed run goes on with its event log as it is")
        if not any(f"{key}.".startswith(f"{free}.") for free in RESUMABLE):
            raise ConfigError(f"{text!r}: a resumed run keeps its {key!r}; only {', '.join(RESUMABLE)} may change")
    try:
        return load_resumed(str(run / "config.toml"), settings, mode, out=str(run))
    except ConfigError as error:
        raise ConfigError(f"{run / 'config.toml'}: {error}") from error


def _start(
    mode: str, source: str | None, overrides: list[str] | None, as_json: bool, dry_run: bool, resume: Path | None
) -> None:
    with stdout_for(as_json or dry_run) as shown:
        _go(mode, source, overrides, as_json, dry_run, resume, shown)


def _go(
    mode: str, source: str | None, overrides: list[str] | None, as_json: bool, dry_run: bool, resume: Path | None,
    shown: IO[str],
) -> None:  # fmt: skip
    """``_start``; ``shown``: where its result goes."""
    from stretto.kernel.logfile import find_log
    from stretto.run.launch import check_start, launch
    from stretto.run.rundir import what_next

    source, settings = _split(source, overrides)
    config = _configure(source, settings, resume, mode)
    if dry_run:
        check_start(config, mode, resume, err.print)
        if as_json:
            print(config.model_dump_json(), file=shown)
        else:
            print(to_toml(config), end="", file=shown)
        return
    run = Path(config.out_dir)
    try:
        result = launch(config, mode, resume=resume)
    except KeyboardInterrupt as error:
        why = getattr(error, "why", "")
        begun = resume is not None or find_log(run) is not None
        _interrupted(f"interrupted{why and ', '}{why}. " + (what_next(run) if begun else _NOTHING_LOST))
        raise
    try:
        if as_json:
            print(json.dumps(result), file=shown, flush=True)
        else:
            _show(result)
    except OSError:
        if "signal" not in result:
            raise  # otherwise its terminal may be what is gone
    if "signal" in result:
        late = "" if result["reason"] == "interrupted" else f" when all was {result['reason']}"
        _interrupted(f"interrupted{late}. {what_next(run)}")
        raise Interrupted(signal.Signals[result["signal"]])


def _interrupted(message: str) -> None:
    err.print(message)
    with hear() as signals:
        signals.told = True


def _show(result: Result) -> None:
    """The result for a person."""
    from stretto.run.rundir import goes_on_with

    rows = {}
    evaluation = result["eval"]
    before, after = evaluation["initial_accuracy"], evaluation["accuracy"]
    means, count = (evaluation["initial_mean"], evaluation["mean"]), evaluation["count"]
    if before is not None and after is not None:
        assert means[0] is not None
        assert means[1] is not None
        first = 1 if evaluation["evaluations"] == 1 else 0  # of a single one there is nothing to compare
        rows["held-out accuracy"] = _change([before, after][first:]) + _error([before, after][first:], count)
        if max(abs(means[0] - before), abs(means[1] - after)) > 1e-9:  # else rewards are 0 or 1, and it is the accuracy
            rows["held-out reward"] = _change([means[0], means[1]][first:])
    stale = result["staleness"]
    rows["steps"] = f"{result['steps']} (version {result['version']}), {result['reason']}"
    rows["staleness"] = f"mean {stale['mean']:.2f}, max {stale['max']} versions"
    rows["ledger"] = ", ".join(f"{k} {v}" for k, v in result["ledger"].items())
    stopped = result["reason"] == "interrupted" and not result["ledger"]["open"]
    if stopped and (kept := goes_on_with(Path(result["run"]))):
        rows["ledger"] += f" ({kept} of the cancelled are in the checkpoint and go on when the run is resumed)"
    rows["time"] = f"{result['wall_s']:.1f} s wall"
    if result["virtual_s"] is not None:
        rows["time"] += f", {result['virtual_s']:.1f} s virtual"
    if result["weights_sha256"]:
        rows["model"] = f"{result['run']}/model"
    if (Path(result["run"]) / "report.html").exists():
        rows["report"] = f"{result['run']}/report.html"
    for label, value in rows.items():
        out.print(f"  {label:<17}    {value}", soft_wrap=True)  # a path can be copied whole
    for finding in result["warnings"]:
        style = "yellow" if finding["level"] == "warning" else ""
        out.print(f"{finding['level']}: {finding['what']}. {finding['do']}", style=style, soft_wrap=True)


def _change(values: list[float]) -> str:
    return " → ".join(f"{value:.3f}" for value in values)


def _error(values: list[float], n: int | None) -> str:
    """Twice the standard error of the least certain of these accuracies on ``n`` tasks each, in words. When all tasks
    succeeded or none, that would be 0 however few they are: then what else they may well be."""
    if not n:
        return ""
    each = " each" if len(values) > 1 else ""
    error = 2 * math.sqrt(max(p * (1 - p) for p in values) / n)
    if error:
        return f" (± {error:.3f}{each}, {n} tasks)"
    from stretto.observe.confidence import wilson_interval

    ends = {p: wilson_interval(p, n) for p in values}
    counts = ", ".join(
        f"{round(p * n)} of {n}: 95% interval {low:.3f} to {high:.3f}" for p, (low, high) in ends.items()
    )
    return f" ({counts})"


@app.command()
def train(
    source: Source = None, overrides: Overrides = None, resume: Resume = None, as_json: Json = False,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Train on the wall clock: engine and learner in processes of their own."""
    _start("train", source, overrides, as_json, dry_run, resume)


@app.command()
def rehearse(
    source: Source = None, overrides: Overrides = None, resume: Resume = None, as_json: Json = False,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Train as on a cluster that you don't have. Sampling and updates are real, durations come from a model.

    The clock is virtual, so waiting costs nothing, and a seed replays a run event for event (simulation.* says how long
    things take).
    """
    _start("rehearse", source, overrides, as_json, dry_run, resume)


@app.command()
def simulate(
    source: Source = None, overrides: Overrides = None, resume: Resume = None, as_json: Json = False,
    dry_run: DryRun = False,
) -> None:  # fmt: skip
    """Plan a run: how fast would it be on other hardware? Nothing is computed.

    Lengths, rewards and durations are sampled from simulation.*; staleness, idle time and throughput come out.
    """
    _start("simulate", source, overrides, as_json, dry_run, resume)


@app.command()
def check(run: RunDir, as_json: Json = False) -> None:
    """Check a run's event log against every invariant of the loop; exit 1 if one is broken."""
    from stretto.observe.checker import check_run

    result = check_run(run)
    if as_json:
        violations = [str(v) for v in result.violations]
        print(json.dumps({"events": result.events, "violations": violations, "complete": result.complete}))
    else:
        for violation in result.violations[:50]:
            out.print(str(violation))
        state = "" if result.complete else " (the run did not end)"
        print(f"{result.events} events, {len(result.violations)} violations{state}")
    if result.violations:
        raise typer.Exit(1)


@app.command()
def log(run: RunDir, event: EventName = None) -> None:
    """Print a run's event log, one JSON object a line (what they mean: docs/loop.md)."""
    from stretto.kernel.events import NAMES
    from stretto.kernel.logfile import stream_events

    if event is not None and event not in NAMES:
        raise ConfigError(f"--event {event}: no such event; {did_you_mean(event, NAMES)}")
    for line in stream_events(run, any_format=True):
        if event is None or line["e"] == event:
            print(json.dumps(line, separators=(",", ":")))


@app.command()
def report(run: RunDir) -> None:
    """Write report.html of a run, finished or not."""
    from stretto.observe.report import write_report

    print(write_report(run, lambda line: err.print(line)))


@app.command()
def recipes(as_json: Json = False) -> None:
    """List the recipes that come with Stretto."""
    rows = []
    for name in recipe_names():
        table = read_source(name)
        rows.append({"name": name, "description": str(table.get("description", ""))})
    if as_json:
        print(json.dumps(rows))
        return
    shown = Table(show_header=True, box=None, padding=(0, 2))
    shown.add_column("recipe")
    shown.add_column("what it does")
    for row in rows:
        shown.add_row(row["name"], row["description"])
    out.print(shown)


@app.command()
def doctor(as_json: Json = False) -> None:
    """What works on this machine and what is missing."""
    from stretto.run.doctor import examine

    rows = examine()
    if as_json:
        print(json.dumps(rows))
    else:
        for row in rows:
            colour = {"ok": "green", "missing": "yellow", "bad": "red"}[row["status"]]
            out.print(Text.assemble((f"{row['status']:<7}", colour), f" {row['name']}: {row['detail']}"))
    if any(row["status"] == "bad" for row in rows):
        raise typer.Exit(1)
