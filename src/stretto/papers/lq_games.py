"""Learning under Opponent Unawareness in Linear-Quadratic Stochastic Games: the sticky-price Cournot market.

Firms that see only the price and their own quantity fit a single-agent model and act on it. Exact: the equilibrium by
three routes. Measured: how fast play comes near it, and what learning costs whom. Only the abstract is public (play
converges; learning lowers profits, total surplus falls, concentration rises; publishing output mitigates that), so
constants are [inferred] and every figure beside ours our own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.games.lq.cournot import (
    ORACLES,
    Cournot,
    mistaken_gains,
    nash_gains,
    price_root,
    price_taking,
    static_cournot,
    steady_price,
    steady_quantities,
    welfare,
)
from stretto.games.lq.cournot_learning import cournot_least_squares
from stretto.games.lq.market import Learned, Learners
from stretto.games.lq.outside import quantecon_nash
from stretto.games.lq.riccati import deviation_gain, nash, nash_residual
from stretto.observe.canvas import Canvas
from stretto.observe.confidence import t_interval
from stretto.papers.base import Check, Outcome, Settings, Shown
from stretto.papers.parts import together
from stretto.tabular.slopes import Slope, loglog_slope

RATES = ((0.25, 0.1, -0.33, 128, 64), (0.25, 0.9, -0.46, 32, 16), (0.5, 0.5, -0.35, 32, 16), (0.5, 0.9, -0.50, 32, 16))
"""nu, s, the slope that is expected, seeds, seeds if quick. The first line lies near its bound: over 32 seeds its slope
has a standard error of .025, so it takes more."""
AROUND = 0.12
"""How far from the expected slope a slope may lie: four of its standard errors over 16 seeds."""
STICKINESS = (0.1, 0.3, 0.9)
CLOCKS = (7, 11)
TABLE = {"profit": (10.542, 11.24, 10.56), "consumer": (10.111, 9.04, 10.07), "total": (20.653, 20.28, 20.63),
         "hhi": (0.5, 0.504, 0.5), "gain error": (0.0, 0.09, 0.019)}  # fmt: skip
"""s = .1: Nash, learning, with the total output published."""
SETTINGS_THAT_TURN_THE_SIGN = (
    ("uniform exploration, s=.9", Cournot(s=0.9), Learners(periods=CLOCKS), "-.007 +- .006"),
    ("timing 1, k=3, uniform, s=.1", Cournot(s=0.1, timing=1, k=3.0), Learners(periods=CLOCKS), "8.600 - 8.611"),
    ("timing 1, k=3, centred, s=.1", Cournot(s=0.1, timing=1, k=3.0), Learners(periods=CLOCKS, centred=True), None),
)


def cournot_nash(settings: Settings) -> Outcome:
    """The equilibrium: recursion, ``solve_discrete_are``, quantecon; static Cournot at s = 1; no deviation pays."""
    measured: dict[float, tuple[float, ...]] = {}
    gaps, outside, residuals, ratios, deviations = [], [], [], [], []
    for s in ORACLES:
        model = Cournot(s=s)
        gains = nash_gains(model)
        values = (*gains[0], price_root(model, gains), steady_price(model, gains), steady_quantities(model, gains)[0])
        measured[s] = tuple(float(v) for v in values)
        found = nash(model.game(), route="recursion")
        gaps.append(float(np.abs(np.vstack(found.gains) - gains).max()))
        residuals.append(nash_residual(model.game(), found))
        ratios.append(found.ratio)
        deviations.append(deviation_gain(model.game(), list(gains[:, None]), 0, [1.0, 5.0]))
        outside.append(float(np.abs(np.vstack(quantecon_nash(model.game()).gains) - gains).max()))
    off = {s: max(abs(a - b) for a, b in zip(measured[s], ORACLES[s], strict=True)) for s in ORACLES}
    static = np.abs(np.array(measured[1.0][4]) - static_cournot(Cournot(s=1.0))).max()
    flows = welfare(Cournot(), nash_gains(Cournot()))
    known = (10.541693, 10.110935, 20.652628)
    checks = [
        *(Check(f"s={s:g}: K0, K1, root, price, q", measured[s], "the known digits", ORACLES[s], off[s] < 6e-7)
          for s in ORACLES),
        Check("recursion against solve_discrete_are", max(gaps), "< 1e-7", 0.0, max(gaps) < 1e-7),
        Check("quantecon.nnash against solve_discrete_are", max(outside), "< 1e-7", 0.0, max(outside) < 1e-7),
        Check("residual of the coupled equations", max(residuals), "< 1e-10", 0.0, max(residuals) < 1e-10),
        Check("late ratio of best responses in turn", max(ratios), "<= .12", 0.12, max(ratios) <= 0.12),
        Check("static Cournot at s=1", measured[1.0][4], "to 1e-9", 2.0, bool(static < 1e-9)),
        Check("most that a linear deviation gains", max(deviations), "<= 0", 0.0, max(deviations) <= 0),
        Check("price if firms took it as given", price_taking(Cournot()), "to 1e-3", 4.667,
              abs(price_taking(Cournot()) - 14 / 3) < 1e-9),
        Check("profit, consumer, total at s=.1", flows[:3], "the known digits", known,
              max(abs(a - b) for a, b in zip(flows, known, strict=False)) < 6e-7),
    ]  # fmt: skip
    return Outcome(checks, [], _draw_nash)


def cournot_rate(settings: Settings) -> Outcome:
    """Gain error against time, whole history; then what shorter memories do to it."""
    steps = 1_000_000
    marks = np.unique(np.round(np.logspace(2, 6, 41)).astype(int))
    late = marks >= 10_000
    lines: list[tuple[float, float, Floats, Slope]] = []
    checks = []
    for nu, s, expected, usual, quick in RATES:
        seeds = settings.range(usual, quick)
        settings.say(f"cournot-rate: nu = {nu:g}, s = {s:g}, {len(seeds)} seeds")
        errors = cournot_least_squares(Cournot(s=s), Learners(nu=nu), steps, seeds, marks.tolist()).errors()
        slope = loglog_slope(marks[late], errors[:, late], median=True)
        bound, end = -(1 - nu) / 2 + 0.08, float(np.median(errors[:, -1]))
        lines.append((nu, s, np.median(errors, 0), slope))
        checks += [
            Check(f"nu={nu:g} s={s:g}: slope", slope.value, f"<= {bound:.3f}; the reference to {AROUND:g}", expected,
                  slope.value <= bound and abs(slope.value - expected) <= AROUND, paper="play converges, with a rate",
                  where="abstract"),
            Check(f"nu={nu:g} s={s:g}: its interval", (slope.low, slope.high), "reported"),
            Check(f"nu={nu:g} s={s:g}: median error at 1e6", end, "< .06", None, end < 0.06),
        ]  # fmt: skip
    memories = (Learners(), Learners(memory="forget"), Learners(memory="doubling"))
    seeds = settings.range(32, 8)
    for s, learners in ((s, m) for s in ((0.1,) if settings.quick else (0.1, 0.5)) for m in memories):
        settings.say(f"cournot-rate: memory {learners.memory}, s = {s:g}")
        last = cournot_least_squares(Cournot(s=s), learners, steps, seeds).errors()[:, -1]
        kind = "whole history" if learners.memory == "all" else learners.memory
        expected_end = "rarely .24" if learners.memory == "all" else "sometimes .15-.4"
        found = {"median": np.median(last), "largest": last.max(), "share > .15": (last > 0.15).mean()}
        checks.append(Check(f"nu=.5 s={s:g}, {kind}: error at 1e6", found, "reported", expected_end))
    for s in (0.1, 0.5):
        stuck = np.abs(mistaken_gains(Cournot(s=s), 2.0) - nash_gains(Cournot(s=s))).max()
        checks.append(Check(f"s={s:g}: exact error if each takes both firms' effect for its own", stuck, "reported"))
    notes = [
        "Slopes are of the median over seeds, from 1e4 steps on. The upper bound -(1-nu)/2 comes from exploration "
        "alone telling a firm its effect on the price.",
        "A memory that fades or restarts leaves more firms far from the equilibrium (shares above .15), near the place "
        "where each takes what both do together for its own effect: they move together, and exploration has faded.",
    ]
    return Outcome(checks, notes, lambda figure: _draw_rate(figure, marks, lines))


def cournot_welfare(settings: Settings) -> Outcome:
    """Who pays for learning: flows over a run, beside the equilibrium on the same noise; unaware and with output
    published."""
    seeds, steps = settings.range(64, 16), 100_000
    checks: list[Check] = []
    change: dict[tuple[float, bool], dict[str, tuple[float, float]]] = {}
    for s in STICKINESS:
        settings.say(f"cournot-welfare: s = {s:g}, {len(seeds)} seeds")
        model = Cournot(s=s)
        base = _at_nash(model, steps, seeds)
        ways = {shown: Learners(centred=True, periods=CLOCKS, published=shown) for shown in (False, True)}
        runs = {shown: cournot_least_squares(model, way, steps, seeds) for shown, way in ways.items()}
        for shown, run in runs.items():
            change[s, shown] = {
                x: _interval(getattr(run, x) - getattr(base, x)) for x in ("profit", "consumer", "total")
            }
        if s == 0.1:
            checks += _table(model, runs)
        loss, left = (-change[s, shown]["total"][0] for shown in (False, True))
        error, small = (float(runs[shown].errors()[:, -1].mean()) for shown in (False, True))
        unequal = _interval(runs[False].hhi - runs[True].hhi)
        surplus, high = change[s, False]["total"], s == min(STICKINESS)
        where = "abstract: at high stickiness" if high else ""
        checks += [
            Check(f"s={s:g}: total surplus against Nash", _span(surplus), "interval below 0", None,
                  not sum(surplus) >= 0, paper="falls" if high else None, where=where),
            Check(f"s={s:g}: HHI, less that with published output", _span(unequal), "interval above 0", None,
                  not unequal[0] <= unequal[1], paper="rises" if high else None, where=where),
            Check(f"s={s:g}: gain error, with published output", (error, small), "falls at least 3-fold", None,
                  error >= 3 * small, paper="publishing accelerates convergence", where="abstract"),
            Check(f"s={s:g}: surplus loss, with published output", (loss, left), "falls at least 5-fold", None,
                  loss >= 5 * left, paper="publishing mitigates the losses", where="abstract"),
            _profit(f"s={s:g}: profit against Nash", change[s, False]["profit"], None),
            Check(f"s={s:g}: profit against Nash, published", _span(change[s, True]["profit"]), "reported"),
        ]  # fmt: skip
    for name, model, learners, expected in SETTINGS_THAT_TURN_THE_SIGN:
        settings.say(f"cournot-welfare: {name}")
        gain = cournot_least_squares(model, learners, steps, seeds).profit - _at_nash(model, steps, seeds).profit
        checks.append(_profit(f"{name}: profit against Nash", _interval(gain), expected))
    low = max(change[s, False]["profit"][0] for s in STICKINESS) < 0
    notes = [
        "Learning lowers profits: "
        + ("reproduced." if low else "not reproduced.")
        + " Firms that learn make less than "
        "the equilibrium quantity, which raises the price; consumers pay for it. The sign depends on how they explore.",
        "An HHI of two firms can't be below .5, so it's compared with the one under published output: learning in the "
        "dark makes firms unequal for a while.",
    ]
    return Outcome(checks, notes, lambda figure: _draw_welfare(figure, change))


def _at_nash(model: Cournot, steps: int, seeds: range) -> Learned:
    """The equilibrium on the learners' noise."""
    everyone = range(model.firms)
    return cournot_least_squares(model, Learners(), steps, seeds, gains=nash_gains(model), frozen=everyone)


def _interval(x: Floats) -> tuple[float, float]:
    """Mean over seeds and half its 95 % interval."""
    mean, _, high = t_interval(x.tolist())
    return mean, high - mean


def _span(found: tuple[float, float]) -> str:
    return f"{found[0]:.4f} +- {found[1]:.4f}"


def _profit(name: str, found: tuple[float, float], expected: Shown) -> Check:
    mean, half = found
    return Check(name, _span(found), "the effect: below 0", expected, absent=mean + half >= 0,
                 paper="learning lowers profits at low and high stickiness", where="abstract")  # fmt: skip


def _table(model: Cournot, runs: dict[bool, Learned]) -> list[Check]:
    at = welfare(model, nash_gains(model))
    checks = []
    for name, expected in TABLE.items():
        found = [f"{getattr(at, name) if hasattr(at, name) else 0.0:.3f}"]
        for run in runs.values():
            found.append(_span(_interval(getattr(run, name) if hasattr(run, name) else run.errors()[:, -1])))
        checks.append(Check(f"s=.1: {name} at Nash, learning, published", found, "reported", list(expected)))
    return checks


def _draw_nash(figure: Canvas) -> None:
    left, right = figure.subplots(1, 2)
    prices = np.linspace(0, 10, 50)
    for s in ORACLES:
        found = nash(Cournot(s=s).game())
        K = np.vstack(found.gains)
        line = left.plot(prices, np.clip(-(K[0, 0] + K[0, 1] * prices), 0, 4), label=f"s = {s:g}")
        left.plot(steady_price(Cournot(s=s), K), steady_quantities(Cournot(s=s), K)[0], "o", color=line[0].get_color())
        right.semilogy(range(1, found.rounds + 1), found.changes, "o-", ms=3, label=f"s = {s:g}")
    left.set(xlabel="price", ylabel="quantity", title="Equilibrium policies; dots: steady state")
    right.set(xlabel="round", ylabel="largest change of a gain", title="Best responses in turn")
    left.legend()
    right.legend()


def _draw_rate(figure: Canvas, marks: Ints, lines: list[tuple[float, float, Floats, Slope]]) -> None:
    for axis, nu in zip(figure.subplots(1, 2, sharey=True), (0.25, 0.5), strict=True):
        for _, s, middle, slope in (line for line in lines if line[0] == nu):
            axis.loglog(marks, middle, label=f"s = {s:g}: slope {slope.value:.2f}")
        late = marks[marks >= 10_000]
        axis.loglog(late, 0.2 * (late / 1e4) ** (-(1 - nu) / 2), "k--", label=f"slope {-(1 - nu) / 2:g}, the bound")
        axis.set(xlabel="step", title=f"Exploration t^-{nu:g}", ylabel="median gain error" if nu == 0.25 else "")
        axis.legend()


def _draw_welfare(figure: Canvas, change: dict[tuple[float, bool], dict[str, tuple[float, float]]]) -> None:
    for axis, s in zip(figure.subplots(1, 3, sharey=True), STICKINESS, strict=True):
        for shift, shown in ((-0.2, False), (0.2, True)):
            found = change[s, shown]
            axis.bar(np.arange(3) + shift, [v[0] for v in found.values()], 0.38, yerr=[v[1] for v in found.values()],
                     label="output published" if shown else "unaware")  # fmt: skip
        axis.axhline(0, color="0.3", lw=0.8)
        axis.set_xticks(range(3), ["profit", "consumer", "total"])
        axis.set(title=f"s = {s:g}", ylabel="learning - Nash, a step" if s == STICKINESS[0] else "")
    axis.legend()


PARTS: dict[str, Callable[[Settings], Outcome]] = {
    "cournot-nash": cournot_nash,
    "cournot-rate": cournot_rate,
    "cournot-welfare": cournot_welfare,
}


def reproduce(settings: Settings) -> Outcome:
    """All three parts: the equilibrium, the rate, and the welfare of learning."""
    return together(PARTS, settings)
