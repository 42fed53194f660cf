"""Run experiments: one, or all side by side; verdicts, figure files and the table."""

from __future__ import annotations

import dataclasses
import importlib
import math
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from stretto.kernel.errors import ConfigError
from stretto.kernel.json import Json, JsonObject
from stretto.kernel.process_map import ProcessMap
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Paper, Settings, Shown
from stretto.papers.catalog import EXPERIMENTS


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What ``stretto reproduce`` says about a paper. ``figure``: path of the PNG, None without one. ``settings``: how
    it was asked."""

    paper: Paper
    outcome: Outcome
    seconds: float
    figure: str | None
    settings: Settings = dataclasses.field(default_factory=Settings)

    def record(self) -> JsonObject:
        """The verdict as the JSON object that scripts read."""
        how = self.settings
        return {
            "paper": self.paper.name,
            "claim": self.paper.claim,
            "verdict": self.outcome.verdict,
            "failed": self.outcome.failed,
            "checks": [
                {"name": c.name, "paper": plain(c.paper), "where": c.where, "reference": plain(c.reference),
                 "here": plain(c.measured), "condition": c.condition, "verdict": c.verdict}
                for c in self.outcome.checks
            ],
            "notes": [*self.outcome.notes],
            "seeds": {"first": how.first_seed, "count": how.seeds},
            "quick": how.quick,
            "versions": versions(),
            "seconds": round(self.seconds, 2),
            "figure": self.figure,
        }  # fmt: skip


def versions() -> dict[str, Json]:
    """What the figures were made with."""
    found: dict[str, Json] = {name: metadata.version(name) for name in ("stretto", "torch", "numpy", "scipy", "numba")}
    return {"python": platform.python_version(), **found}


def reproduce(paper: Paper, settings: Settings, figures: Path) -> Verdict:
    """Run the experiment of ``paper`` and write its figure into ``figures``. ``ConfigError`` if it has none, or if
    nothing can be written there."""
    if paper.module is None:
        raise ConfigError(f"{paper.name} has no experiment yet; with one: {', '.join(p.name for p in EXPERIMENTS)}")
    check_directory(figures)
    start = time.perf_counter()
    module = importlib.import_module(f"stretto.papers.{paper.module}")
    scratch = figures / f"{paper.name}{'-quick' if settings.quick else ''}.unfinished"
    run = module.PARTS[paper.only] if paper.only else module.reproduce
    outcome: Outcome = run(dataclasses.replace(settings, scratch=scratch))
    figure, notes = None, outcome.notes
    if outcome.plot is not None:
        try:
            figure = str(save_figure(outcome.plot, figures / f"{paper.name}.png"))
        except (OSError, ValueError) as error:  # a full disk, or figures that can't be drawn: what was measured is kept
            notes = [*notes, f"no figure: {error}"]
    outcome = dataclasses.replace(outcome, notes=notes, plot=None)
    return Verdict(paper, outcome, time.perf_counter() - start, figure, dataclasses.replace(settings, say=_silent))


def check_directory(figures: Path) -> None:
    """Make the directory ``figures``; ``ConfigError`` where files can't be written into it. Asked before an experiment
    that may take minutes."""
    try:
        figures.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=figures):
            pass
    except OSError as error:
        raise ConfigError(f"--figures = {figures} is no directory that can be written to ({error.strerror})") from None


def reproduce_all(
    settings: Settings,
    figures: Path,
    jobs: int,
    done: Callable[[Verdict], None],
    chosen: Sequence[Paper] | None = None,
) -> list[Verdict]:
    """All experiments (or the ``chosen``), ``jobs`` processes at a time; ``done`` hears of each. In the order of the
    list."""
    check_directory(figures)
    papers = list(EXPERIMENTS) if chosen is None else list(chosen)
    # a terminal's printer doesn't travel to another process
    quiet = dataclasses.replace(settings, say=_silent, jobs=1)
    found: dict[str, Verdict] = {}
    with ProcessMap(min(jobs, len(papers))) as pool:
        for verdict in pool.results(reproduce, [(paper, quiet, figures) for paper in papers]):
            found[verdict.paper.name] = verdict
            done(verdict)
    return [found[p.name] for p in papers]


def save_figure(fill: Callable[[Canvas], None], path: Path) -> Path:
    """Write the PNG of what ``fill(figure)`` plots to ``path``; returns it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(9, 4), layout="constrained")
    FigureCanvasAgg(figure)
    fill(figure)
    figure.savefig(path, dpi=120)
    return path


def table(verdicts: Iterable[Verdict]) -> str:
    """A Markdown table of all checks of all ``verdicts``, one line each."""
    lines = ["| of | what | paper | reference | here | condition | verdict |",
             "| --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for verdict in verdicts:
        for check in verdict.outcome.checks:
            cells = [verdict.paper.name, check.name, said(check), text(check.reference), text(check.measured),
                     check.condition, check.verdict]  # fmt: skip
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def said(check: Check) -> str:
    """What the paper says, and where."""
    return f"{text(check.paper)} ({check.where})" if check.where else text(check.paper)


def text(value: Shown) -> str:
    """``value`` (a number, or lists and dicts of them) for people: four significant digits."""
    given = plain(value)
    if given is None:
        return ""
    if isinstance(given, bool | str):
        return str(given)
    if isinstance(given, dict):
        return ", ".join(f"{k}: {text(v)}" for k, v in given.items())
    if isinstance(given, list):
        return ", ".join(text(v) for v in given)
    return f"{float(given):.4g}"


def plain(value: Shown) -> Json:
    """``value`` as JSON: NumPy numbers and arrays become Python's, what isn't finite a string."""
    if (listed := getattr(value, "tolist", None)) is not None:
        value = listed()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} can't be written as JSON")


def _silent(line: str) -> None:
    return None
