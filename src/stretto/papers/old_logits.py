"""Missing old logits (arXiv 2605.12070): engine mismatch and staleness come apart only with the right log-probability.

A bandit whose engine adds noise to the trainer's logits, trained on samples of many versions. The gate on the first
factor (mismatch) and the clip on the second (staleness) act as meant with the trainer's log-probability at the sample's
version; an average of weights, an interpolation, and the recomputed current policy stand in for it.
"""

from __future__ import annotations

from typing import get_args

import numpy as np

from stretto.objectives.decoupled_ppo import DecoupledPPO
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.drawing import legend_below
from stretto.papers.effects import effect
from stretto.tabular.multiplier import multipliers
from stretto.tabular.old_logits.mismatched_bandit import Result, Route, sample_mismatched_bandit, train
from stretto.tabular.old_logits.scoring_routes import compare_routes

ROUTES: tuple[Route, ...] = get_args(Route)
BOUNDS = (0, 8, 16, 32)
FIELDS = ("error", "differs", "dropped", "value")
REFERENCE: dict[tuple[int, str], tuple[float, ...]] = {
    (0, "exact"): (0, 0, 0.022, 0.556),
    (0, "ewma"): (0, 0, 0.022, 0.556),
    (0, "recompute"): (0, 0, 0.022, 0.556),
    (0, "proxy"): (0.0137, 0.022, 0.000, 0.567),
    (8, "exact"): (0, 0, 0.023, 0.557),
    (8, "ewma"): (0.0153, 0.032, 0.045, 0.549),
    (8, "recompute"): (0.0242, 0.069, 0.080, 0.530),
    (32, "exact"): (0, 0, 0.025, 0.487),
    (32, "proxy"): (0.0445, 0.067, 0.105, 0.502),
    (32, "recompute"): (0.0670, 0.235, 0.281, 0.393),
}
"""(lag bound, route) -> error of the log-probability, decisions that differ, first-factor mask rate, final return."""
OBJECTIVE = DecoupledPPO(reference="old", correction="mask", floor=0.9, cap=1.1)
Table = dict[tuple[int, str], dict[str, float]]
Runs = dict[tuple[int, str], list[Result]]


def reproduce(settings: Settings) -> Outcome:
    """The routes' errors, decisions and returns by lag bound; the three exact routes and their costs."""
    bounds = (0, 32) if settings.quick else BOUNDS
    runs = _runs(settings, bounds)
    found = {at: {name: float(np.mean([getattr(run, name) for run in row])) for name in FIELDS}
             for at, row in runs.items()}  # fmt: skip
    rows = [
        Check(f"S = {bound}, {route}: error, decisions, mask rate, return",
              [found[bound, route][name] for name in FIELDS], "reported", REFERENCE.get((bound, route)))
        for bound in bounds for route in ROUTES
    ]  # fmt: skip
    exact = [found[bound, "exact"]["dropped"] for bound in bounds]
    flat = max(exact) / max(min(exact), 1e-9)
    growth = found[32, "recompute"]["dropped"] / max(found[0, "recompute"]["dropped"], 1e-9)
    stale = [bound for bound in bounds if bound > 0]
    fresh = [found[0, route] for route in ("exact", "ewma", "recompute")]
    nearer = [_nearer(runs[bound, "ewma"], runs[bound, "recompute"]) for bound in stale]
    off = _off_rule(settings.first_seed)
    conditions = [
        Check("multiplier of grad log pi on 2000 random tokens: largest distance from g(x) clip(rho) A", off,
              "< 1e-12", 0.0, off < 1e-12),
        Check("mask rate of exact, by S", exact, "in [.018, .030]", [0.022, 0.025],
              all(0.018 <= rate <= 0.030 for rate in exact)),
        Check("mask rate of exact, largest over smallest S", flat, "at most 1.15", 0.025 / 0.022, flat <= 1.15),
        Check("mask rate of recompute, S = 32 over S = 0", growth, "at least 8", 13, growth >= 8),
        Check("EWMA is nearer than recompute in error, in decisions, at S > 0", nearer, "all, in every seed", None,
              all(all(row) for row in nearer)),
        *(effect(f"final return at S = {bound}: EWMA - recompute", *(
            [run.value for run in runs[bound, route]] for route in ("ewma", "recompute"))) for bound in stale),
        Check("exact, EWMA and recompute at S = 0", "equal" if fresh.count(fresh[0]) == 3 else "differ", "equal", None,
              fresh.count(fresh[0]) == 3),
        Check("proxy at S = 0: mask rate", found[0, "proxy"]["dropped"], "below a tenth of exact's", 0.0,
              found[0, "proxy"]["dropped"] < 0.1 * exact[0]),
    ]  # fmt: skip
    notes = [
        "The log-linear proxy is wrong even on fresh data: its first factor never shows the engine's noise, so its "
        "gate doesn't act. Its returns are no worse for that here.",
        "The paper's gain in speed and quality by the approximate route is of language models; it isn't measured here.",
    ]
    return Outcome([*rows, *conditions, *_routes(settings)], notes, lambda figure: _plot(figure, found, bounds))


def _runs(settings: Settings, bounds: tuple[int, ...]) -> Runs:
    seeds = settings.range(4, 1)
    runs: Runs = {}
    for bound in bounds:
        for route in ROUTES:
            runs[bound, route] = [train(sample_mismatched_bandit(s), OBJECTIVE, route, bound, s) for s in seeds]
        settings.say(f"lag bound {bound}: {len(ROUTES)} routes, {len(seeds)} seeds")
    return runs


def _nearer(one: list[Result], other: list[Result]) -> list[bool]:
    pairs = list(zip(one, other, strict=True))
    return [all(a.error < b.error for a, b in pairs), all(a.differs < b.differs for a, b in pairs)]


def _off_rule(seed: int) -> float:
    """Largest distance of the objective's gradient from the formula: x inside [.9, 1.1], rho inside the clip on the
    side that A pushes to, x rho A there, 0 elsewhere."""
    g = np.random.default_rng((seed, 5))
    first, second, advantages = 0.08 * g.normal(size=2000), 0.2 * g.normal(size=2000), g.normal(size=2000)
    x, rho = np.exp(first), np.exp(second)
    clipped = np.where(advantages > 0, rho > 1.2, rho < 0.8)
    rule = np.where((x >= 0.9) & (x <= 1.1) & ~clipped, x * rho * advantages, 0.0)
    return float(np.abs(multipliers(OBJECTIVE, x * rho, advantages, logp_old=first) - rule).max())


def _routes(settings: Settings) -> list[Check]:
    checks = []
    for interval in (64, 16, 4):
        c = compare_routes(interval, seed=settings.first_seed, updates=max(40, 640 // interval))
        checks.append(Check(f"exact routes, an update every {interval} decode steps: largest error",
                            max(c.error.values()), "0", 0.0, max(c.error.values()) == 0))  # fmt: skip
        for name, cost in c.cost.items():
            table = {"weight copies": cost.copies, "forward tokens / trained token": cost.forward / c.tokens,
                     "stalled steps / update": cost.stall / max(40, 640 // interval)}  # fmt: skip
            detail = f"{c.versions:.1f} versions a trajectory, staleness up to {c.staleness}"
            checks.append(Check(f"{name}, an update every {interval} steps ({detail})", table, "reported"))
    return checks


def _plot(figure: Canvas, found: Table, bounds: tuple[int, ...]) -> None:
    axes = figure.subplots(1, 3)
    titles = {"error": "|error| of the log-probability", "dropped": "first-factor mask rate", "value": "final return"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for route in ROUTES:
            style = "o--" if route == "ewma" else "o-"  # they start from one point
            axis.plot(bounds, [found[bound, route][name] for bound in bounds], style, label=route)
        axis.set(xlabel="lag bound S", title=title)
        legend_below(axis)
