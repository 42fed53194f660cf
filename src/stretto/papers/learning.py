"""Learning comparisons of the papers whose methods come without a published small run: the method and the paper's own
baselines in one world where no weights are best everywhere, at exact lags, on the same contexts and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stretto.objectives import get
from stretto.observe.calibration import collapse_step
from stretto.observe.canvas import Canvas
from stretto.observe.confidence import t_interval
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.drawing import legend_below
from stretto.papers.effects import Interval, difference
from stretto.tabular.lagged.learning import Curve, Plan, PlanChanges, train
from stretto.tabular.lagged.world import World, WorldChanges

WORLD: WorldChanges = {"contexts": 16, "vocab": 4, "depth": 4, "features": 8, "success": 0.1}
"""One sequence in ten succeeds; 1360 states share 32 weights."""
PLAN: PlanChanges = {"refresh": "window", "steps": 256, "prompts": 8, "group": 8, "lr": 0.5, "optimizer": "adam"}
"""A step size at which learning without lag is stable. Uncorrected GRPO collapsed in 10 of 17 seeds at lag 32 and in 12
of 13 at lag 64 (seeds 0-4, 10-17 and, at lag 32, 20-23); GMC-GRPO in none of the 17 at lag 32."""
LAGS, QUICK_LAGS = (0, 32, 64), (32,)
SEEDS, QUICK_SEEDS, QUICK_STEPS = 5, 2, 64


@dataclass(frozen=True)
class Arm:
    """A competitor: an objective of ``stretto.objectives`` with ``options``, ``plan`` changes for it alone (a critic, a
    group size, ...), and ``more_lag`` steps of lag beyond that of the comparison."""

    name: str
    options: Mapping[str, object] = field(default_factory=dict)
    plan: PlanChanges = field(default_factory=PlanChanges)
    more_lag: int = 0


@dataclass(frozen=True)
class Learning:
    """Runs by (arm, lag), a curve a seed, seeds in the same order. ``claims``: (better, worse) pairs of arms, as the
    paper has it; ``world`` and ``plan`` as they were."""

    curves: dict[tuple[str, int], list[Curve]]
    claims: Sequence[tuple[str, str]]
    world: World
    plan: Plan

    @property
    def lags(self) -> list[int]:
        """Lags that were run, in ascending order."""
        return sorted({lag for _, lag in self.curves})

    def contested(self, better: str, worse: str) -> list[int]:
        """Lags at which both compared arms ran."""
        return [lag for lag in self.lags if {(better, lag), (worse, lag)} <= self.curves.keys()]

    @property
    def arms(self) -> list[str]:
        """Names of the arms, in the order given."""
        return list(dict.fromkeys(arm for arm, _ in self.curves))


def learn(
    arms: Mapping[str, Arm],
    claims: Sequence[tuple[str, str]],
    settings: Settings,
    *,
    lags: Sequence[int] | None = None,
    world: WorldChanges | None = None,
    plan: PlanChanges | None = None,
) -> Learning:
    """Every arm at every lag for every seed; a seed is a world of its own with its own noise, the same for all arms.
    Lag 0 is a reference, run by the first arm alone. ``world`` and ``plan`` change ``WORLD`` and ``PLAN``."""
    chosen = lags if lags is not None else LAGS
    if settings.quick:
        chosen = [lag for lag in chosen if lag in QUICK_LAGS] or [max(chosen)]
    changes: PlanChanges = {**PLAN, **(plan or {})}
    if settings.quick:
        changes["steps"] = QUICK_STEPS
    how = Plan(**changes)
    curves: dict[tuple[str, int], list[Curve]] = {}
    where: WorldChanges = {**WORLD, **(world or {})}
    worlds = {seed: World(**where, seed=seed) for seed in settings.range(SEEDS, quick=QUICK_SEEDS)}
    for lag in chosen:
        settings.say(f"learning at lag {lag}")
        for label, arm in arms.items() if lag else list(arms.items())[:1]:
            objective = get(arm.name, **arm.options)
            own: PlanChanges = {"lag": lag + arm.more_lag, **arm.plan}
            curves[label, lag] = [train(at, objective, how, seed=seed, **own) for seed, at in worlds.items()]
    return Learning(curves, claims, next(iter(worlds.values())), how)


def learning_checks(learning: Learning) -> list[Check]:
    """A row per lag and arm; a row per lag and claim, which is not reproduced where neither the end nor the mean over
    the run lies above 0 with its whole interval. Without a condition: the papers give no figure for this world."""
    unit = "accuracy" if learning.world.success else "J"
    checks = [
        Check(f"learning, lag {lag}: {arm}", summary(curves), f"{unit}: mean +- 95 % (t, {len(curves)} seeds)")
        for (arm, lag), curves in learning.curves.items()
    ]
    for better, worse in learning.claims:
        for lag in learning.contested(better, worse):
            names = ("final", "low", "high"), ("area", "area low", "area high")
            measured: dict[str, float] = {}
            found = gain(learning, better, worse, lag)
            for what, part in zip(names, found, strict=True):
                measured |= dict(zip(what, part, strict=True))
            checks.append(Check(f"learning, lag {lag}: {better} - {worse}", measured,
                                "the effect: above 0; paired by seed, 95 % (t)", absent=_absent(found)))  # fmt: skip
    return checks


def summary(curves: Sequence[Curve]) -> dict[str, float]:
    """Final J and mean J over the run, each with the half-width of its interval; the share of collapsed runs; KL and
    the share of tokens that moved the weights, means over the steps (of what came before a divergence)."""
    final, _, high = t_interval([c.final for c in curves])
    area, _, top = t_interval([c.area for c in curves])
    return {
        "final": final,
        "+-": high - final,
        "area": area,
        "area +-": top - area,
        "collapsed": float(np.mean([collapsed(c) for c in curves])),
        "KL": float(np.mean([np.nanmean(c.kl) for c in curves])),
        "moved": float(np.mean([np.nanmean(c.moved) for c in curves])),
    }


def collapsed(curve: Curve) -> bool:
    """The collapse detector's word on the exact J of the run, or the weights weren't finite any more."""
    return curve.diverged is not None or collapse_step(curve.j.tolist()) is not None


def gain(learning: Learning, better: str, worse: str, lag: int) -> tuple[Interval, Interval]:
    """(mean, low, high) of the differences in final J and in mean J over the run, seed by seed."""
    one, other = learning.curves[better, lag], learning.curves[worse, lag]
    return (difference([c.final for c in one], [c.final for c in other]),
            difference([c.area for c in one], [c.area for c in other]))  # fmt: skip


def learning_notes(learning: Learning) -> list[str]:
    """Notes that say in plain words whether what the paper claims of learning appears here."""
    notes = []
    for better, worse in learning.claims:
        words = []
        for lag in learning.contested(better, worse):
            found = gain(learning, better, worse, lag)
            final, area = (f"{_verdict(*part)} ({part[0]:+.3f})" for part in found)
            missing = " (not reproduced)" if _absent(found) else ""
            words.append(f"lag {lag}{missing}: at the end {final}, over the run {area}")
        notes.append(f"Learning: is {better} above {worse}? " + "; ".join(words) + ".")
    return notes


def _absent(found: tuple[Interval, Interval]) -> bool:
    """Does neither interval lie above 0? Of one seed (NaN) nothing is said."""
    return all(low <= 0 for _, low, _ in found)


def _verdict(mean: float, low: float, high: float) -> str:
    if np.isnan(low):
        return "one seed says nothing"
    return "yes" if low > 0 else "no, below" if high < 0 else "undecided"


def with_learning(outcome: Outcome, learning: Learning) -> Outcome:
    """``outcome`` and the comparison: its rows, its notes, its curves below the figure."""
    above = outcome.plot

    def fill(figure: Canvas) -> None:
        if above is None:
            return plot_learning(figure, learning)
        figure.figure.set_size_inches(9, 9)
        (top,), (bottom,) = figure.subfigures(2, 1, squeeze=False)
        above(top)
        plot_learning(bottom, learning)
        return None

    return Outcome([*outcome.checks, *learning_checks(learning)], [*outcome.notes, *learning_notes(learning)], fill)


def plot_learning(figure: Canvas, learning: Learning) -> None:
    """J over the steps, a panel per lag, a colour per arm: the mean over seeds and the seeds themselves, faint."""
    axes = figure.subplots(1, len(learning.lags), sharey=True, squeeze=False)[0]
    for axis, lag in zip(axes, learning.lags, strict=True):
        for colour, arm in enumerate(learning.arms):
            if (arm, lag) not in learning.curves:
                continue
            lines = np.array([c.j for c in learning.curves[arm, lag]])
            axis.plot(lines.T, f"C{colour}", alpha=0.15, linewidth=0.7)
            axis.plot(lines.mean(0), f"C{colour}", label=arm)
        axis.set(xlabel="step", title=f"Learning at lag {lag}")
        legend_below(axis)
    axes[0].set_ylabel("accuracy (exact)" if learning.world.success else "J (exact)")
