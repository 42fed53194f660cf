"""Commands on methods and papers: objectives, papers, reproduce, compare, calibrate."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from stretto.cli.app import Json, Overrides, app, err, out
from stretto.kernel.errors import ConfigError

if TYPE_CHECKING:
    from stretto.papers.run import Verdict
    from stretto.sweep.cells import Record

Out = Annotated[Path | None, typer.Option("--out", help="Directory of the results; an interrupted sweep goes on.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Processes at a time.")]
Recipe = Annotated[str, typer.Argument(help="A recipe (see `stretto recipes`) or a TOML file.")]
Figures = Annotated[Path, typer.Option("--figures", help="Directory of the figures.")]


@app.command()
def objectives(
    name: Annotated[str | None, typer.Argument(help="An objective; without one, all are listed.")] = None,
    as_json: Json = False,
) -> None:
    """List the losses that a run can train with, and when to use which. With a name: what that one does.

    An objective decides how much each sampled token counts when the policy that sampled it has changed since. With a
    name, its formula, source, options and effect on a token's gradient are shown.
    """
    from stretto.objectives.describe import NEEDS, WHEN, describe, prose, summaries

    if name is None:
        rows = summaries()
        if as_json:
            print(json.dumps([dataclasses.asdict(row) for row in rows]))
            return
        shown = Table(show_header=True, box=None, padding=(0, 2))
        for column in ("objective", "what it is", "needs"):
            shown.add_column(column)
        for row in rows:
            shown.add_row(row.name, prose(row.summary), ", ".join(row.needs))
        out.print(WHEN)
        out.print(shown)
        out.print(f"\n{NEEDS}")
        return
    found = describe(name)
    if as_json:
        print(json.dumps(dataclasses.asdict(found)))
        return
    out.print(Text.assemble((found.name, "bold"), f"  ({found.module})\n"))
    out.print(prose(found.text))
    options = Table(title="options", title_justify="left", show_header=True, box=None, padding=(0, 2))
    for column in ("option", "type", "default", "also written"):
        options.add_column(column)
    for option in found.options:
        options.add_row(option.name, option.type, option.default, ", ".join(option.symbols))
    out.print("", options)
    table = Table(title="gradient: multiplier of A grad logp", title_justify="left", box=None, padding=(0, 2))
    ratios = list(dict.fromkeys(row.ratio for row in found.gradient))
    table.add_column("ratio")
    for ratio in ratios:
        table.add_column(f"{ratio:g}", justify="right")
    for advantage in (1.0, -1.0):
        cells = [f"{row.multiplier:.4g}" for row in found.gradient if row.advantage == advantage]
        table.add_row("A > 0" if advantage > 0 else "A < 0", *cells)
    out.print("", table)


@app.command()
def papers(as_json: Json = False) -> None:
    """List the papers whose methods are here, and what each claims. `stretto reproduce NAME` runs one's experiment."""
    from stretto.papers import PAPERS
    from stretto.papers.catalog import LANGUAGE

    if as_json:
        keys = ("name", "title", "arxiv", "status", "parts")
        print(json.dumps([{key: getattr(paper, key) for key in keys} for paper in PAPERS]))
        return
    shown = Table(show_header=True, box=None, padding=(0, 2))
    out.print(
        "These are papers on asynchronous reinforcement learning, each with its claim and where its method lives here. "
        "`stretto reproduce NAME` runs the experiment of one that is reproducible and puts its figures beside ours.\n"
    )
    shown.add_column("name", no_wrap=True)
    shown.add_column("paper, claim, where it lives")
    shown.add_column("status", no_wrap=True)
    trained = {experiment.name for experiment in LANGUAGE}
    for paper in PAPERS:
        parts = [part for part in paper.parts if len(paper.parts) > 1]
        parts += [name for name in (f"{paper.name}-language",) if name in trained]
        name = "\n".join([paper.name, *(f"  {part}" for part in parts)])
        arxiv = f" (arXiv {paper.arxiv})" if paper.arxiv else ""
        about = Text.assemble((paper.title, "bold"), f"{arxiv}\n{paper.claim}\n", (f"{paper.lives}\n", "dim"))
        shown.add_row(name, about, paper.status)
    out.print(shown)


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(help="A paper, or a part of one (see `stretto papers`).")] = None,
    every: Annotated[bool, typer.Option("--all", help="All papers that have an experiment.")] = False,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Seeds; default: the experiment's own.")] = None,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="The first of them.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Under 30 seconds: fewer seeds, shorter runs.")] = False,
    figures: Figures = Path("runs/papers"),
    jobs: Jobs = 2,
    as_json: Json = False,
) -> None:
    """Run a paper's experiment on this machine. What it measures is put beside what the paper says.

    Beside each figure: what the paper says, and a reference of our own from its formulas. Where a condition is named it
    must hold for the claim to count as reproduced; exit code 1 if one fails.
    """
    from stretto.papers import Settings, find
    from stretto.papers.catalog import EXPERIMENTS
    from stretto.papers.run import reproduce as run_one
    from stretto.papers.run import reproduce_all, table

    if (name is None) != every:
        if name is None:
            known = ", ".join(each for p in EXPERIMENTS for each in (p.name, *(p.parts if len(p.parts) > 1 else ())))
            raise ConfigError(
                f"which paper? These have an experiment: {known}. Give one name (see `stretto papers`), or --all"
            )
        raise ConfigError("which paper? Give one name (see `stretto papers`), or --all, not both")
    settings = Settings(seeds, first_seed, quick, lambda line: err.print(line), jobs)
    if name is not None:
        verdict = run_one(find(name), settings, figures)
        print(json.dumps(verdict.record())) if as_json else _show(verdict)
        failed = verdict.outcome.failed
    else:

        def say(verdict: Verdict) -> None:
            err.print(f"{verdict.paper.name}: {verdict.outcome.verdict}, {verdict.seconds:.0f} s")

        try:
            verdicts = reproduce_all(settings, figures, jobs, say)
        except KeyboardInterrupt:
            err.print("interrupted")
            raise
        text = table(verdicts)
        (figures / "table.md").write_text(text + "\n")
        print(json.dumps([v.record() for v in verdicts]) if as_json else text)
        failed = any(v.outcome.failed for v in verdicts)
    if failed:
        raise typer.Exit(1)


def _show(verdict: Verdict) -> None:
    from stretto.papers.run import table

    paper = verdict.paper
    out.print(Text.assemble((paper.title, "bold"), f" (arXiv {paper.arxiv})" if paper.arxiv else ""))
    out.print(f"claim: {paper.claim}\n")
    if out.is_terminal:
        out.print(_checks(verdict))
    else:
        print(table([verdict]))  # a line a check, however wide
    for note in verdict.outcome.notes:
        out.print(f"note: {note}")
    out.print(f"{verdict.outcome.verdict} in {verdict.seconds:.1f} s")
    if verdict.figure:
        out.print(f"figure: {verdict.figure}")


def _checks(verdict: Verdict) -> Table:
    from stretto.papers.run import said, text

    shown = Table(show_header=True, box=None, padding=(0, 2))
    for column in ("what", "paper", "reference", "here", "condition", "verdict"):
        shown.add_column(column, overflow="fold")
    colour = {"pass": "green", "FAIL": "bold red", "reported": "dim", "not reproduced": "yellow"}
    for check in verdict.outcome.checks:
        cells = (check.name, said(check), text(check.reference), text(check.measured), check.condition)
        shown.add_row(*cells, Text(check.verdict, colour[check.verdict]))
    return shown


@app.command()
def compare(
    recipe: Recipe,
    overrides: Overrides = None,
    arms: Annotated[str, typer.Option("--objectives", help="Such as grpo,tis[cap=3],plain=grpo[reference=proximal].")]
    = "grpo",
    lag: Annotated[str, typer.Option("--lag", help="Lags in versions, such as 0,1,8,32,64.")] = "0,8,32",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each objective at each lag.")] = 3,
    first_seed: Annotated[int, typer.Option("--first-seed", min=0, help="The first seed.")] = 0,
    directory: Out = None,
    jobs: Jobs = 2,
    keep_runs: Annotated[bool, typer.Option("--keep-runs", help="Keep every run's directory.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Find out which objective bears how old data. The same runs are made with each and put on one page.

    Runs are rehearsed: batch k is sampled by version max(0, k - lag) and no other, so the lag is exact.
    """
    from stretto.sweep.arms import parse_arms, parse_numbers
    from stretto.sweep.compare import compare as run
    from stretto.sweep.compare import final_accuracy
    from stretto.sweep.report import markdown, write_report

    _check_out(overrides)
    parsed, lags = parse_arms(arms), parse_numbers(lag, "--lag")
    chosen = list(range(first_seed, first_seed + seeds))
    where = directory or Path("runs") / f"compare-{Path(recipe).stem}"

    def line(record: Record) -> str:
        failed = f", {record['error']}" if "error" in record else ""
        return f"{record['arm']} lag {record['lag']} seed {record['seed']}: {final_accuracy(record):.3f}{failed}"

    with _Counted(len(parsed) * len(lags) * len(chosen), line) as done:
        result = run(recipe, overrides or [], parsed, lags, chosen, where, jobs=jobs, keep_runs=keep_runs, done=done)
    command = ["stretto", "compare", recipe, *(overrides or []), "--objectives", arms, "--lag", lag,
               "--seeds", str(seeds), "--first-seed", str(first_seed)]  # fmt: skip
    page = write_report(result, command, where / "report.html")
    (where / "table.md").write_text(markdown(result) + "\n")
    if as_json:
        print(json.dumps(result.as_json() | {"report": str(page)}))
    else:
        print(markdown(result))
        print(f"\nreport: {page}")


@app.command()
def calibrate(
    recipe: Recipe,
    overrides: Overrides = None,
    sync: Annotated[str, typer.Option("--sync", help="Sync intervals to sweep, in steps.")] = "4,8,16",
    rates: Annotated[str, typer.Option("--rates", help="Learning rates to sweep.")] = "3e-4,1e-3,3e-3,1e-2",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs of each pair; stable if all are.")] = 1,
    interval: Annotated[int, typer.Option("--interval", help="The intended sync interval S, in steps.")] = 8,
    horizon: Annotated[int, typer.Option("--horizon", help="The intended length of the run, in steps.")] = 1000,
    safety: Annotated[float, typer.Option("--safety", help="Factor on the result.")] = 1.0,
    directory: Out = None,
    jobs: Jobs = 2,
    as_json: Json = False,
) -> None:
    """Find the largest learning rate that shouldn't make a run collapse. It tries short runs and computes a safe one.

    The more steps lie between two weight updates of the engine (the sync interval S), and the longer the run (the
    horizon T), the smaller the rate must be. From the runs that collapsed two budgets are fitted, S x rate and
    rate x T; the answer keeps both.
    """
    from stretto.papers.run import save_figure
    from stretto.sweep.arms import parse_numbers
    from stretto.sweep.calibrate import calibrate as run
    from stretto.sweep.calibrate import plot

    _check_out(overrides)
    try:
        grid = [float(rate) for rate in rates.split(",")]
    except ValueError:
        raise ConfigError(f"--rates = {rates!r}: expected numbers with commas between, such as 1e-4,1e-3") from None
    intervals = parse_numbers(sync, "--sync")
    where = directory or Path("runs") / f"calibrate-{Path(recipe).stem}"

    def line(record: Record) -> str:
        from stretto.sweep.compare import collapse_of

        step = collapse_of(record)
        end = "held" if step is None else f"collapsed at step {step}"
        return f"S {record['sync_interval']} rate {record['rate']:g} seed {record['seed']}: {end}"

    with _Counted(len(intervals) * len(grid) * seeds, line) as done:
        result = run(recipe, overrides or [], intervals, grid, list(range(seeds)), where, sync_interval=interval,
                     horizon=horizon, safety=safety, jobs=jobs, done=done)  # fmt: skip
    figure = save_figure(lambda f: plot(result, f), where / "calibration.png")
    if as_json:
        print(json.dumps(result.as_json() | {"figure": str(figure)}))
        return
    laws = result.laws
    print(f"(S rate)* = {laws.interval_budget:.3g}, (rate T)* = {laws.horizon_budget:.3g}; {laws.collapsed} runs "
          f"collapsed, {laws.censored} did not (censored)")  # fmt: skip
    print(f"largest safe learning rate at S = {interval} for {horizon} steps: {result.rate:.3g}\nfigure: {figure}")


def _check_out(overrides: list[str] | None) -> None:
    """Each run of a sweep has a directory of its own."""
    for text in overrides or ():
        key, _, value = text.partition("=")
        if key.strip() == "out":
            raise ConfigError(f"{text!r}: a sweep's results go to --out {value.strip() or 'DIRECTORY'}")


class _Counted:
    """Progress over a known number of runs: a bar on a terminal, a line a run elsewhere."""

    def __init__(self, total: int, line: Callable[[Record], str]) -> None:
        self._total, self._line, self._done = total, line, 0
        text = TextColumn("{task.description}", markup=False)  # an error that a run ended with may be in it
        columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=err, disable=not sys.stderr.isatty())
        self._task = self._bar.add_task("runs", total=total)

    def __enter__(self) -> Callable[[Record], None]:
        self._bar.start()
        return self._hear

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt:  # which Typer swallows
            err.print("interrupted: what has ended is kept, and the same command goes on from there")

    def _hear(self, record: Record) -> None:
        self._done += 1
        text = self._line(record)
        if self._bar.disable:
            err.print(f"{self._done}/{self._total} {text}")
        else:
            self._bar.update(self._task, advance=1, description=text)
