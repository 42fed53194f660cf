"""The papers' methods train a language model: rehearsals at exact lags, on the virtual clock, paired by seed.

For one seed all arms have the same initial model, prompts and sampling noise. Runs are kept until all of them are
there: an experiment that was interrupted goes on where it was.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.drawing import legend_below
from stretto.papers.effects import Interval, difference
from stretto.papers.language_contests import CONTESTS, LanguageContest, Run
from stretto.sweep.arms import parse_arms
from stretto.sweep.cells import Cell, Record, run_cells
from stretto.sweep.compare import check_exact, collapsed, final_accuracy, mean_accuracy

SEEDS, QUICK_SEEDS = 5, 1
STEPS, QUICK = ("max_steps=96", "eval.every=16"), ("max_steps=12", "eval.every=6")
Runs = dict[tuple[str, Run], list[Record]]


@dataclass(frozen=True)
class Effect:
    """What one arm has over another in one setting: mean, low and high of the differences in final accuracy and in
    that over the run, at 95 % (t), seed by seed."""

    final: Interval
    area: Interval

    @property
    def word(self) -> str:
        """``wins`` or ``loses`` where one interval excludes 0 and the other doesn't contradict, else ``ties``;
        ``says nothing`` of one seed."""
        if np.isnan(self.final[1]):
            return "says nothing"
        above, below = (self.final[1] > 0 or self.area[1] > 0), (self.final[2] < 0 or self.area[2] < 0)
        return "ties" if above == below else "wins" if above else "loses"


def reproduce(name: str, settings: Settings) -> Outcome:
    """All arms of the contest of the paper ``name`` in all its runs: who wins, who ties, who loses."""
    contest = CONTESTS[name]
    runs = contest.runs[:1] if settings.quick else contest.runs
    seeds = settings.range(SEEDS, quick=QUICK_SEEDS)
    found = _train(contest, runs, seeds, settings)
    checks, notes = [*_broken(contest, found, runs, settings)], []
    checks += [
        Check(f"{run.label}: {arm}", _summary(found[arm, run]), f"accuracy, {len(seeds)} seeds")
        for run in runs for arm in contest.arms
    ]  # fmt: skip
    for better, worse in contest.claims:
        effects = {run: effect(found, better, worse, run) for run in runs}
        checks += [
            Check(f"{run.label}: {better} {e.word} against {worse}", {"final": list(e.final), "area": list(e.area)},
                  "the effect: one interval above 0, none below; mean, low, high (t, 95 %), paired by seed",
                  absent=e.word in ("ties", "loses"))
            for run, e in effects.items()
        ]  # fmt: skip
        notes.append(_sentence(better, worse, effects))
    notes.append(_verdict(contest, found, runs))
    return Outcome(checks, notes, partial(_plot, contest=contest, found=found, runs=runs))


def effect(found: Runs, better: str, worse: str, run: Run) -> Effect:
    """The effect of ``better`` over ``worse`` in the setting ``run``."""
    one, other = found[better, run], found[worse, run]
    return Effect(
        difference([final_accuracy(r) for r in one], [final_accuracy(r) for r in other]),
        difference([mean_accuracy(r) for r in one], [mean_accuracy(r) for r in other]),
    )


def _train(contest: LanguageContest, runs: Sequence[Run], seeds: Sequence[int], settings: Settings) -> Runs:
    cells = {
        (arm, run, seed): _cell(contest, arm, run, seed, settings) for seed in seeds for run in runs
        for arm in contest.arms
    }  # fmt: skip
    where = nullcontext(settings.scratch) if settings.scratch else tempfile.TemporaryDirectory()
    count = 0

    def done(record: Record) -> None:
        nonlocal count
        count += 1
        settings.say(f"{count} of {len(cells)}: {record['arm']}, lag {record['lag']}, lr {record['rate']:g}, seed "
                     f"{record['seed']}: {final_accuracy(record):.2f}")  # fmt: skip

    with where as path:
        out = Path(path)
        records = run_cells(contest.recipe, (), list(cells.values()), out, jobs=settings.jobs, done=done)
        shutil.rmtree(out, ignore_errors=True)  # complete: asked again, all is run again
    if contest.exact:
        for arm in contest.arms:  # what differs in more than its objective may start from other data
            if arm in contest.own:
                check_exact([r for r in records if r["arm"] == arm])
        check_exact([r for r in records if r["arm"] not in contest.own])
    by_cell = dict(zip(cells, records, strict=True))
    return {(arm, run): [by_cell[arm, run, seed] for seed in seeds] for arm in contest.arms for run in runs}


def _cell(contest: LanguageContest, arm: str, run: Run, seed: int, settings: Settings) -> Cell:
    (parsed,) = parse_arms(contest.arms[arm])
    lag = run.lag + contest.more_lag.get(arm, 0)
    own = (*contest.settings, *contest.own.get(arm, ()), f"lag_bound={lag}", f"learner.lr={run.rate!r}")
    return Cell(
        {"arm": arm, "lag": lag, "rate": run.rate, "seed": seed},
        (*parsed.settings("none"), *own, f"seed={seed}", *(QUICK if settings.quick else STEPS)),
    )


def _broken(contest: LanguageContest, found: Runs, runs: Sequence[Run], settings: Settings) -> list[Check]:
    """Does the baseline collapse where it should? Else the contest would be none."""
    if contest.breaks is None:
        return []
    records = found[contest.breaks, runs[0]]
    count = sum(map(collapsed, records))
    holds = None if settings.quick else 2 * count > len(records)
    return [Check(f"{runs[0].label}: runs of {contest.breaks} that end below half of their start",
                  f"{count} of {len(records)}", "more than half", None, holds)]  # fmt: skip


def _summary(records: Sequence[Record]) -> dict[str, float]:
    return {
        "start": float(np.mean([r["accuracy"][0][1] for r in records if r["accuracy"]])),
        "final": float(np.mean([final_accuracy(r) for r in records])),
        "area": float(np.mean([mean_accuracy(r) for r in records])),
        "collapsed": sum(map(collapsed, records)),
    }


def _sentence(better: str, worse: str, effects: Mapping[Run, Effect]) -> str:
    said = "; ".join(f"{run.label}: {e.word} (at the end {e.final[0]:+.2f}, over the run {e.area[0]:+.2f})"
                     for run, e in effects.items())  # fmt: skip
    return f"{better} against {worse}: {said}."


def _verdict(contest: LanguageContest, found: Runs, runs: Sequence[Run]) -> str:
    """Plainly: does the paper's method help anywhere?"""
    method = next(iter(contest.arms))
    rivals = [worse for better, worse in contest.claims if better == method]
    tried = "; ".join(run.label for run in runs)
    if any(effect(found, method, worse, run).word == "says nothing" for worse in rivals for run in runs):
        return "One seed says nothing of who wins."
    best = [run.label for run in runs if all(effect(found, method, worse, run).word == "wins" for worse in rivals)]
    if best:
        return f"{method} beats {' and '.join(rivals)} at {' and at '.join(best)} (tried: {tried})."
    beaten = [worse for worse in rivals if any(effect(found, method, worse, run).word == "wins" for run in runs)]
    if beaten:
        return f"{method} beats {' and '.join(beaten)} somewhere, but nowhere all of its rivals (tried: {tried})."
    return f"{method} helped in no setting that we tried: {tried}."


def _plot(figure: Canvas, contest: LanguageContest, found: Runs, runs: Sequence[Run]) -> None:
    """Held-out accuracy over the steps, a panel a setting, a colour an arm: the mean over seeds; the seeds, faint."""
    axes = figure.subplots(1, len(runs), sharey=True, squeeze=False)[0]
    for axis, run in zip(axes, runs, strict=True):
        for colour, arm in enumerate(contest.arms):
            lines = [np.array(r["accuracy"], float) for r in found[arm, run] if r["accuracy"]]
            for line in lines:
                axis.plot(line[:, 0], line[:, 1], f"C{colour}", alpha=0.15, linewidth=0.7)
            length = min((len(line) for line in lines), default=0)  # a run that ended early has fewer
            if length:
                mean = np.mean([line[:length] for line in lines], 0)
                axis.plot(mean[:, 0], mean[:, 1], f"C{colour}", label=arm)
        axis.set(xlabel="step", title=run.label)
        legend_below(axis)
    axes[0].set_ylabel("held-out accuracy")


PARTS: dict[str, Callable[[Settings], Outcome]] = {f"{name}-language": partial(reproduce, name) for name in CONTESTS}
