"""Sharp Statistical Rates for Asynchronous TD Learning with Markovian Data (only its abstract is public).

Claim: the last iterate of tabular TD on one trajectory is within eps of V* in the sup norm after
O~(H^3/(mu_min eps^2) + t_mix/mu_min) transitions, with a constant step tuned to eps and with a decreasing one that
knows neither eps nor the end and is right at all late times at once. Shown on a three-state chain that we built to
match the abstract, where every prediction is exact: no published figure exists to be replicated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from stretto.data.arrays import Floats, Ints
from stretto.kernel.errors import ConfigError
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.parts import together
from stretto.tabular.chains import mixing_time
from stretto.tabular.slopes import log_spaced, loglog_slope
from stretto.tabular.td import laws
from stretto.tabular.td.kernel import first_passage, td
from stretto.tabular.td.moments import moments
from stretto.tabular.td.steps import Steps, constant, tuned, untuned
from stretto.tabular.td.three_state import minimax_pair, three_state

MASS = 0.1
IN_HORIZON = {  # H: T Cov m/H^3, Cov/(eta H^2), efficiency bound m/H^3, TD/bound
    4: (0.041713, 0.026716, 0.037142, 1.1231), 8: (0.054459, 0.035551, 0.047933, 1.1361),
    32: (0.064163, 0.042420, 0.056004, 1.1457), 64: (0.065785, 0.043578, 0.057341, 1.1473),
}  # fmt: skip
IN_MASS = {0.02: 0.056578, 0.05: 0.056479, 0.1: 0.056287, 0.33: 0.054671}
IN_MIXING = {  # L: t_mix, T Cov m/H^3, Cov/(eta H^2)
    8: (7, 0.034401, 0.026192), 32: (30, 0.054459, 0.035551), 128: (119, 0.055987, 0.032965),
    2048: (1906, 0.054313, 0.030416), 8192: (7623, 0.054181, 0.030254),
}  # fmt: skip
LATE = 20_000
MOMENTS: dict[str, tuple[Steps, tuple[float, ...]]] = {
    "T E[e e^T], decreasing": (untuned(8, MASS), (336.867, 259.550, 22.983)),
    "E[e e^T]/eta, eta = .05": (constant(0.05), (2.25308, 1.70860, 0.33871)),
}
PASSAGE = {32: 39e3, 128: 51e3, 512: 63e3, 8192: 148e3, 32768: 379e3}
NEAR = {32: 0.15, 128: 0.15, 512: 0.15, 8192: 0.4, 32768: 0.4}
"""How far from those reference figures a percentile of 512 seeds may be: four standard errors of both."""
SIMULTANEOUS = {10_000: 0.28, 100_000: 0.26, 1_000_000: 0.20}


def constants(settings: Settings) -> Outcome:
    """The limits' constants against H, m and the mixing time; nothing is simulated."""
    checks: list[Check] = []
    lines, mixing = [], []
    for horizon, expected in IN_HORIZON.items():
        process, scale = three_state(horizon, 4 * horizon, MASS), MASS / horizon**3
        late = _largest(laws.late_covariance(process, horizon / MASS)) * scale
        bound = _largest(laws.efficiency_bound(process)) * scale
        ours = (late, _largest(laws.constant_covariance(process)) / horizon**2, bound, late / bound)
        lines.append(ours)
        name = f"H={horizon}: T Cov m/H^3, Cov/(eta H^2), bound m/H^3, TD/bound"
        checks.append(_exact(name, ours, expected, (6, 6, 6, 4)))
    mass = [_largest(laws.late_covariance(three_state(8, 64, m), 8 / m)) * m / 512 for m in IN_MASS]
    checks.append(_exact(f"m={', '.join(f'{m:g}' for m in IN_MASS)}: T Cov m/H^3", mass, tuple(IN_MASS.values())))
    for exit_steps, row in IN_MIXING.items():
        process = three_state(8, exit_steps, MASS)
        found = (mixing_time(process.transitions), _largest(laws.late_covariance(process, 8 / MASS)) * MASS / 512,
                _largest(laws.constant_covariance(process)) / 64)  # fmt: skip
        mixing.append(found)
        checks.append(_exact(f"L={exit_steps}: t_mix, T Cov m/H^3, Cov/(eta H^2)", found, row, (0, 6, 6)))
    slow = [late for t_mix, late, _ in mixing if t_mix >= 30]
    flat = {"m": max(mass) / min(mass), "t_mix, from 30 to 7623": max(slow) / min(slow)}
    for name, ratio in flat.items():
        checks.append(Check(f"T Cov m/H^3 over {name}: largest/smallest", ratio, "<= 1.05: flat", None, ratio <= 1.05))
    chain = three_state(8, 32, MASS)
    best = laws.best_h(chain)[1] / _largest(laws.efficiency_bound(chain))
    checks.append(_exact("H=8, best h: TD/bound", (best,), (1.058,), (3,)))
    for exit_steps, time in ((32, 145.778), (512, 2067.845)):
        worst = laws.worst_reverse_hitting_time(three_state(8, exit_steps, MASS).transitions)
        checks.append(_exact(f"L={exit_steps}: worst reverse hitting time", (worst,), (time,), (3,)))
    pair = [p.values() for p in minimax_pair(8, 32, MASS, LATE)]
    apart = float(np.abs(pair[0] - pair[1]).max() * np.sqrt(MASS * LATE / 8**3))
    checks.append(Check(f"minimax pair, T={LATE}: max |V+ - V-| sqrt(m T/H^3)", apart))
    notes = ["L=8 is left out of the flatness in t_mix: it has exits as frequent as switches (k = p), another problem",
             "the lower bound is a minimax statement, which no run reproduces: shown instead are the ratio to the "
             "efficiency bound and how far apart the minimax pair's values are"]  # fmt: skip

    def plot(figure: Canvas) -> None:
        left, right = figure.subplots(1, 2)
        for k, label in enumerate(("T Cov m/H³ (steps h/t)", "Cov/(η H²) (constant step)", "efficiency bound m/H³")):
            left.plot(list(IN_HORIZON), [line[k] for line in lines], "o-", label=label)
        left.set(
            xlabel="H",
            ylabel="scaled variance, worst state",
            title="constants flatten: the rate is cubic in H",
            ylim=(0, 0.08),
        )
        for k, label in ((1, "T Cov m/H³"), (2, "Cov/(η H²)")):
            right.semilogx([m[0] for m in mixing], [m[k] for m in mixing], "o-", label=label)
        right.set(
            xlabel="mixing time",
            ylabel="scaled variance, worst state",
            title="no mixing time in the statistical term",
            ylim=(0, 0.08),
        )
        left.legend(), right.legend()

    return Outcome(checks, notes, plot)


def finite_time(settings: Settings) -> Outcome:
    """Part ``td-moments``: exact mean and second moment of the error after 20,000 transitions, beside simulation."""
    chain = three_state(8, 32, MASS)
    seeds = _seeds(settings, 16_384, quick=2048)
    checks, deviations = [], {}
    for name, (steps, diagonal) in MOMENTS.items():
        scale = LATE if steps.h < np.inf else 1 / steps.top
        exact = moments(chain, steps, LATE)
        second = np.diag(exact.second)
        checks.append(
            _exact(f"{name}: exact diagonal", tuple(second * scale), diagonal, (3 if scale == LATE else 5,) * 3)
        )
        if steps.h < np.inf:
            checks.append(
                _exact("mean error, decreasing: exact", tuple(exact.mean), (-0.03986, -0.03109, 0.00025), (5, 5, 5))
            )
        settings.say(f"{len(seeds)} seeds, {name}")
        error = td(chain, steps, seeds, [LATE]).values[:, 0] - chain.values()
        for what, sample, expected in (("mean error", error, exact.mean), ("second moment", error**2, second)):
            z = (sample.mean(0) - expected) / (sample.std(0, ddof=1) / np.sqrt(len(seeds)))
            deviations[f"{what}\n{name.split(', ')[1]}"] = z
            checks.append(Check(f"{name}: {what}, {len(seeds)} seeds, standard errors from the exact", list(z),
                                "each within 4", None, bool((np.abs(z) <= 4).all())))  # fmt: skip

    def plot(figure: Canvas) -> None:
        axes = figure.subplots()
        for k, state in enumerate("abc"):
            axes.plot([z[k] for z in deviations.values()], "o", label=f"state {state}")
        axes.axhspan(-4, 4, alpha=0.1)
        axes.set_xticks(range(len(deviations)), list(deviations))
        axes.set(ylabel="simulated - exact, standard errors", title="moments after 20,000 transitions")
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom, top + 0.25 * (top - bottom))  # room for the names
        axes.legend(loc="upper center", ncols=3)

    return Outcome(checks, [], plot)


def rate(settings: Settings) -> Outcome:
    """The last iterate's rate, its variance against the Lyapunov solution, and simultaneity."""
    total = 1_000_000 if settings.quick else 10_000_000
    seeds = _seeds(settings, 256, quick=128)
    marks = log_spaced(total, 60 * round(np.log10(total / 1000)) + 1, first=1000)
    checks: list[Check] = []
    curves = {}
    for horizon in (8, 16):
        chain, steps = three_state(horizon, 4 * horizon, MASS), untuned(horizon, MASS)
        settings.say(f"H={horizon}: {len(seeds)} seeds, {total:,} transitions each")
        run = td(chain, steps, seeds, marks)
        errors = run.errors(chain.values())
        slope = loglog_slope(marks, errors, decades=float(np.log10(total / 1e5)))
        curves[horizon] = (errors.mean(0), slope)
        near = slope.low <= -0.46 and slope.high >= -0.54
        checks.append(Check(f"H={horizon}: slope of the mean sup-norm error over t >= 1e5, 95 % interval",
                            [slope.value, slope.low, slope.high],
                            "the interval meets -.50 ± .04", -0.5, near,
                            paper="transitions as eps^-2: -1/2", where="abstract"))  # fmt: skip
        limit = np.diag(laws.late_covariance(chain, steps.h))
        state, room = int(limit.argmax()), 4 * np.sqrt(2 / len(seeds))
        ratio = total * float(run.values[:, -1, state].var(ddof=1)) / limit[state]
        checks.append(Check(f"H={horizon}: T Var at T = {total:.0e} / Lyapunov ({limit[state]:.6g})", ratio,
                            f"1 ± 4 sqrt(2/{len(seeds)}) = {room:.2f}", 1, abs(ratio - 1) <= room))  # fmt: skip
        if horizon == 8:
            scaled = _envelope(marks, run.worst[:64], horizon)
    starts = [t for t in SIMULTANEOUS if t < total]
    figures = [float(scaled[marks > t * (1 + 1e-9)].max()) for t in starts]
    falls = all(b <= a for a, b in pairwise(figures))
    checks.append(Check(f"H=8: sup over t >= {', '.join(f'{t:.0e}' for t in starts)} of the scaled error, 64 seeds",
                        figures, "<= .5, not increasing", [SIMULTANEOUS[t] for t in starts],
                        max(figures) <= 0.5 and falls))  # fmt: skip

    def plot(figure: Canvas) -> None:
        left, right = figure.subplots(1, 2)
        for horizon, (mean, slope) in curves.items():
            (line,) = left.loglog(marks, mean, label=f"H={horizon}: slope {slope.value:.3f}")
            middle = float(np.sqrt(1e5 * total))
            half = np.exp(slope.level) * middle ** (slope.value + 0.5) * marks**-0.5
            left.loglog(marks, half, "--", color=line.get_color(), alpha=0.5, label="slope -1/2")
        left.set(
            xlabel="transitions", ylabel="sup-norm error", title=f"mean sup-norm error of {len(seeds)} seeds, steps h/t"
        )
        right.semilogx(marks, scaled, label="largest of 64 seeds, H=8")
        right.axhline(0.5, ls="--", color="black", label="one bound for all late times")
        right.set(
            xlabel="transitions", title="error √(t m/H³) / √(log(t/1000) + log 60)", xlim=(1e4, total), ylim=(0, 1)
        )
        left.legend(), right.legend()

    return Outcome(checks, [], plot)


def transient(settings: Settings) -> Outcome:
    """Transitions to accuracy .5 with the tuned constant step, against the mixing time."""
    seeds, steps = _seeds(settings, 512), tuned(0.5, 8)
    checks, found, bounds, mixing = [], [], [], []
    for exit_steps, expected in PASSAGE.items():
        chain = three_state(8, exit_steps, MASS)
        settings.say(f"L={exit_steps}: {len(seeds)} seeds until the error is .5")
        times = first_passage(chain, steps, seeds, 0.5, every=100, limit=20_000_000)
        late = float(np.percentile(np.where(times < 0, np.inf, times), 90))
        found.append(late)
        mixing.append(mixing_time(chain.transitions) / MASS)
        bounds.append(1.5 * found[0] + 2 * mixing[-1])
        room = NEAR[exit_steps]
        near = late <= bounds[-1] and abs(late / expected - 1) <= room
        checks.append(Check(f"L={exit_steps} (t_mix/mu_min = {mixing[-1]:.0f}): 90th percentile of transitions", late,
                            f"<= 1.5 x (L=32) + 2 t_mix/mu_min = {bounds[-1]:.0f}; reference ± {room:.0%}", expected,
                            near))  # fmt: skip
    notes = ["between its two regimes the transient bends, so the bound is asserted and no line fitted"]

    def plot(figure: Canvas) -> None:
        axes = figure.subplots()
        axes.loglog(mixing, found, "o-", label="90th percentile")
        axes.loglog(mixing, bounds, "--", label="1.5 × (L=32) + 2 t_mix/μ_min")
        axes.set(
            xlabel="t_mix/μ_min",
            ylabel="transitions",
            title="transitions to error ½: the mixing time adds, it doesn't multiply",
        )
        axes.legend()

    return Outcome(checks, notes, plot)


PARTS: dict[str, Callable[[Settings], Outcome]] = {
    "td-constants": constants,
    "td-moments": finite_time,
    "td-rate": rate,
    "td-transient": transient,
}


def reproduce(settings: Settings) -> Outcome:
    """All four parts: constants, finite-time moments, the rate, the transient."""
    found = together(PARTS, settings)
    only = ("Only the abstract is public: its claims are the paper's, the chain, the constants and all figures are "
            "ours.")  # fmt: skip
    return dataclasses.replace(found, notes=[only, *found.notes])


def _envelope(marks: Ints, worst: Floats, horizon: int) -> Floats:
    """[C]: the largest error of any seed since the checkpoint before, over H^(3/2) sqrt((log(t/1000) + log 60)/(m t)).
    Its time is taken as the checkpoint's, the latest, which can only raise the figure (by under 2 %)."""
    return worst.max(0) * np.sqrt(marks * MASS / horizon**3) / np.sqrt(np.log(marks / 1000) + np.log(3 / 0.05))


def _seeds(settings: Settings, usual: int, quick: int | None = None) -> list[int]:
    seeds = list(settings.range(usual, quick))
    if len(seeds) < 16:
        raise ConfigError(f"async-td: seeds = {len(seeds)} are too few for a mean and its error; take 16 or more")
    return seeds


def _largest(covariance: Floats) -> float:
    return float(np.diag(covariance).max())


def _exact(name: str, ours: Sequence[float], expected: tuple[float, ...], digits: tuple[int, ...] = ()) -> Check:
    """All ``digits`` after the point that are given (six, unless said) agree."""
    places = digits or (6,) * len(expected)
    near = [abs(a - b) <= 0.51 * 10.0**-d for a, b, d in zip(ours, expected, places, strict=True)]
    return Check(name, list(ours), "the digits given", list(expected), all(near))
