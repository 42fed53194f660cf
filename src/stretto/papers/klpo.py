"""KLPO (arXiv 2610.08963): its identities by enumeration, its fixed point against a stale sampler, its draws."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from scipy import stats

from stretto.objectives import get
from stretto.objectives.base import Objective
from stretto.objectives.interface import LossFunction
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.comparisons import compare
from stretto.papers.drawing import legend_below
from stretto.papers.learning import with_learning
from stretto.tabular.klpo.estimators import (
    POLICY,
    SAMPLER,
    SMALL,
    small_gradient,
    small_gradient_over_draws,
    variance,
    variances_by_draws,
)
from stretto.tabular.klpo.population import (
    SharedColumns,
    Window,
    descend,
    learn,
    population_gradient,
    population_objective,
    score_covariance,
)
from stretto.tabular.token_tree.tree import TokenTree

OBJECTIVE, ROOT = 1.3745647608726, [0.1845730203, -0.1845730203]
BETA, STALE_BETA = 0.4, 0.5
STEPS, REFRESH, DRAWS = [1, 8, 32, 128, 512, 1024], (1, 8, 32), (2, 4, 8, 16, 32)
PLAIN: dict[str, object] = {"baseline": "none", "std": False, "aggregation": "seq-mean-token-sum"}


def reproduce(settings: Settings) -> Outcome:
    """Enumerations to 1e-8; a tree of 4^3 sequences whose sampler is refreshed every S steps; a sweep of M."""
    seed = settings.first_seed
    tree, g = TokenTree.full(4, 3, seed), torch.Generator().manual_seed(seed)
    start, away = (0.5 * torch.randn(tree.children.shape, generator=g, dtype=torch.float64) for _ in range(2))
    q, p = torch.log_softmax(start, 1), torch.log_softmax(start + away, 1)
    methods = {
        "klpo-full": klpo("token", "full"),
        "klpo-binary": klpo("token", "binary"),
        "reinforce": get("reinforce", **PLAIN),
        "tis": get("tis", **PLAIN),
    }
    fixed = {name: descend(tree, o, q, steps=STEPS, lr=4.0, beta=STALE_BETA) for name, o in methods.items()}
    spread = variances_by_draws(klpo("sequence", "mc"), tree, q, p, STALE_BETA, DRAWS, seed)
    floor = variance(klpo("sequence", "full"), tree, q, p, STALE_BETA)
    checks = [*identities(), *fixed_point(fixed), *sweep(spread, floor)]
    steps = 128 if settings.quick else 256
    for s in REFRESH:
        settings.say(f"sampler refreshed every {s} steps")
        runs = {
            name: [learn(tree, o, q, refresh=s, steps=steps, prompts=64, lr=1.0, beta=STALE_BETA, seed=at)
                   for at in settings.range(5, quick=1)]
            for name, o in methods.items()
        }  # fmt: skip
        checks += windows(s, runs)
    notes = [
        "On four tokens the token-binary fit has a fixed point of its own, "
        f"{fixed['klpo-binary'][-1].distance:.3g} nats from the Gibbs policy: it has no population identity.",
        "Learning is reported, without a condition: the paper has no training results.",
    ]
    outcome = Outcome(checks, notes, lambda figure: plot_figure(figure, fixed, spread, floor))
    return with_learning(outcome, compare("klpo", settings))


def klpo(route: str, estimator: str, beta: float = STALE_BETA) -> Objective:
    """The objective ``klpo`` by ``route`` and ``estimator``, at this temperature."""
    return get("klpo", beta=beta, route=route, estimator=estimator)


def identities() -> list[Check]:
    """Checks of what holds in exact expectation, on the small tree."""
    exact = population_gradient(SMALL, SAMPLER, POLICY, BETA)
    value = population_objective(SMALL, SAMPLER, POLICY, BETA)
    checks = [Check("population objective", value, "to 1e-8", OBJECTIVE, abs(value - OBJECTIVE) < 1e-8)]
    for route, estimator in (("token", "full"), ("sequence", "full"), ("sequence", "binary")):
        found = small_gradient(klpo(route, estimator, BETA), head=estimator == "full")
        near = float((found - exact).abs().max()) < 1e-8 and float(np.abs(found[0].numpy() - ROOT).max()) < 1e-8
        checks.append(Check(f"root gradient, {route}-{estimator}", found[0].tolist(), "to 1e-8", ROOT, near,
                            paper="the routes' population gradients are one", where="claim"))  # fmt: skip
    for route, m in (("token", 1), ("sequence", 2), ("sequence", 3)):
        bias = float((small_gradient_over_draws(klpo(route, "mc", BETA), m) - exact).abs().max())
        checks.append(Check(f"bias, {route}-mc, M = {m}", bias, "< 1e-8", 0.0, bias < 1e-8))
    covariance = BETA * score_covariance(SMALL, SAMPLER, POLICY)
    wrong: list[tuple[LossFunction, str, int]] = [
        (SharedColumns(BETA, "own"), "shared column", 1), (SharedColumns(BETA, "mean"), "all-M mean", 2),
    ]  # fmt: skip
    for objective, name, share in wrong:
        bias_of = small_gradient_over_draws(objective, 2) - exact
        there = float((bias_of - covariance / share).abs().max()) < 1e-8 and float(bias_of.abs().max()) > 1e-3
        condition = f"beta Cov_q(ell, score) / {share} to 1e-8, not 0"
        checks.append(Check(f"bias, {name} residual, M = 2", float(bias_of.abs().max()), condition, None, there))
    return checks


def fixed_point(fixed: dict[str, list[Window]]) -> list[Check]:
    """KL(Gibbs policy || current) after S steps against one sampler, by exact expected gradients."""
    kl = {name: [w.distance for w in run] for name, run in fixed.items()}
    falls = all(b < a for a, b in pairwise(kl["klpo-full"]))
    drifts = kl["reinforce"][-3] < kl["reinforce"][-2] < kl["reinforce"][-1]
    condition = {"klpo-full": "falls to < 1e-6", "reinforce": "still grows at the end"}
    passed = {"klpo-full": falls and kl["klpo-full"][-1] < 1e-6, "reinforce": drifts}
    steps = ", ".join(map(str, STEPS))
    return [
        Check(f"KL to Gibbs after {steps} steps, {name}", kl[name], condition.get(name, ""), None, passed.get(name))
        for name in kl
    ]


def windows(s: int, runs: dict[str, list[list[Window]]]) -> list[Check]:
    """Means over seeds: of KL to the window's Gibbs policy at the ends of windows, and of the last return."""
    far = {name: float(np.mean([w.distance for run in seeds for w in run])) for name, seeds in runs.items()}
    value = {name: float(np.mean([run[-1].value for run in seeds])) for name, seeds in runs.items()}
    return [Check(f"KL to the window's Gibbs policy, S = {s}", far), Check(f"final return, S = {s}", value)]


def sweep(spread: list[float], floor: float) -> list[Check]:
    """Checks: is the variance a + b/M in the number M of draws, with a what is left without draws?"""
    inverse = 1 / np.array(DRAWS)
    b, a = stats.linregress(inverse, spread)[:2]
    off = float(np.abs((a + b * inverse) / spread - 1).max())
    m = ", ".join(map(str, DRAWS))
    return [
        Check(f"variance, sequence-mc, M = {m}", spread, "a + b/M within 5 %", None, off < 0.05),
        Check(
            "a beside the variance of sequence-full", [float(a), floor], "within 5 %", None, abs(a / floor - 1) < 0.05
        ),
    ]


def plot_figure(figure: Canvas, fixed: dict[str, list[Window]], spread: list[float], floor: float) -> None:
    """Plot the distance to the Gibbs policy after S steps (left) and the variance by 1/M (right)."""
    left, right = figure.subplots(1, 2)
    for name, run in fixed.items():
        left.loglog(STEPS, [w.distance for w in run], marker="o", label=name)
    left.set(xlabel="steps S against one sampler", ylabel="KL(Gibbs policy || current), nats",
             title="Against one sampler")  # fmt: skip
    right.plot([1 / m for m in DRAWS], spread, marker="o", label="sequence-mc")
    right.axhline(floor, linestyle="--", label="sequence-full")
    right.set(xlabel="1/M", ylabel="variance of a row's gradient", title="By draws at a position")
    for axis in (left, right):
        legend_below(axis)
