"""BR-Async-Q: Q-learning with trimmed means under corrupted rewards and states, against its exact limits.

Only the abstract is public: the environment's constants and the schedule are [inferred].
"""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import stats

from stretto.data.arrays import Floats
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.parts import together
from stretto.tabular.chains import stationary
from stretto.tabular.mdp import chain, uniform_policy
from stretto.tabular.q import (
    Corruption,
    Rule,
    best_q,
    corrupt,
    mean_limit,
    q_learning,
    robust_limit,
    sup_errors,
    trim_for,
    two_point_gap,
)  # fmt: skip
from stretto.tabular.q.learning import Method
from stretto.tabular.q.world import NOISE
from stretto.tabular.slopes import loglog_slope

SHARES = (0.0, 0.01, 0.05, 0.1)
LOW = SHARES[1]
MAGNITUDES = (10.0, 100.0)
LAST = 10
BATCH = 8000
STATES = "trimmed, states too"
SAFER = "trimmed, safer trim"
ARMS = ("vanilla", "mean", "median_of_means", "trimmed", STATES)
RULES: dict[str, Method] = {
    "vanilla": "vanilla", "mean": "mean", "median_of_means": "median_of_means", "trimmed": "trimmed", STATES: "trimmed",
    SAFER: "trimmed",
}  # fmt: skip
NAMES = {"median_of_means": "median of means", STATES: "trimmed, state corruption"}
BATCHES = 250 * 2 ** np.arange(8)
EXPECTED: dict[str, list[list[float]]] = {
    "vanilla": [[0.086, 0.086], [0.64, 5.4], [2.84, 25.3], [5.67, 50.5]],
    "mean": [[0.025, 0.025], [0.57, 5.3], [2.76, 25.6], [5.47, 50.7]],
    "median_of_means": [[0.034, 0.034], [0.115, 0.115], [0.71, 0.72], [5.56, 53]],
    "trimmed": [[0.025, 0.025], [0.077, 0.078], [0.264, 0.265], [0.472, 0.472]],
    STATES: [[0.025, 0.025], [0.083, 0.104], [0.28, 0.298], [0.498, 0.499]],
}
"""By corrupted share, then magnitude: what was expected before the first run; the paper's own aren't public."""
QUICK = {"trimmed": 12, "median_of_means": 6}
"""Seeds under ``quick`` of those that conditions are on: an epoch with too many outliers must not move the median."""
APART = 0.05
"""How far trimmed Q-learning's tables may be from their exact limit; without corruption noise alone makes .026."""
MEDIAN = 0.4995
"""A trim that leaves the median."""


def reproduce(settings: Settings) -> Outcome:
    """The one part, ``brq``: errors of all learners by corrupted share and magnitude."""
    found = together(PARTS, settings)
    only = ("Only the abstract is public: its claims are the paper's, the process, the constants and all figures are "
            "ours.")  # fmt: skip
    return dataclasses.replace(found, notes=[only, *found.notes])


def brq(settings: Settings) -> Outcome:
    """Error against the corrupted share, for each learner and magnitude, and against the batch without corruption."""
    world = corrupt(0)
    target = best_q(world)
    seeds = {arm: settings.range(16, QUICK.get(arm, 2)) for arm in ARMS}
    cells = [(arm, e, m) for e in SHARES for arm in ARMS for m in MAGNITUDES if e or m == 10]
    cells += [(SAFER, LOW, m) for m in MAGNITUDES]
    seeds[SAFER] = seeds["trimmed"]
    tables = {(arm, e, m): _tables(arm, e, m, seeds[arm]) for arm, e, m in cells}
    found = {cell: sup_errors(q, target).mean(1) for cell, q in tables.items()}
    for arm in ARMS:
        found[arm, 0.0, 100.0] = found[arm, 0.0, 10.0]
    median = {k: float(np.median(v)) for k, v in found.items()}
    settings.say(f"BR-Async-Q: {len(found)} cells")
    apart_of: dict[tuple[float, str], float | None] = {
        (LOW, SAFER): _safer_trim(),
        **{(e, "trimmed"): None for e in SHARES[2:]},
    }
    far = {
        f"{e:g}, {m:g}": float(np.median(sup_errors(tables[arm, e, m], _limit(e, trim)).mean(1)))
        for (e, arm), trim in apart_of.items()
        for m in MAGNITUDES
    }
    limits = np.array([np.abs(_limit(e) - target).max() for e in (0.005, *SHARES[1:])])
    means = [float(np.abs(mean_limit(world, Corruption(e)) - target).max()) for e in SHARES]
    gaps = [two_point_gap(e, world.gamma)[1] for e in SHARES]
    shares = np.array(SHARES)
    trimmed = np.array([median["trimmed", e, 10.0] for e in SHARES])
    rise, _, r2 = _line(shares, trimmed)
    apart = {(arm, e): median[arm, e, 100.0] / median[arm, e, 10.0] - 1 for arm, e in
             [(SAFER, LOW), *(("trimmed", e) for e in SHARES[1:])]}  # fmt: skip
    spread = _ratio_interval(found["trimmed", LOW, 100.0], found["trimmed", LOW, 10.0])
    medians = [float(np.abs(_limit(e, MEDIAN) - target).max()) for e in SHARES[2:]]
    own = float(np.abs(_limit(LOW, _safer_trim()) - target).max())
    usual = max(median["trimmed", LOW, m] - limits[1] for m in MAGNITUDES)
    excess = [median[SAFER, LOW, m] - own for m in MAGNITUDES]
    excess += [median["trimmed", e, m] - limits[2 + i] for i, e in enumerate(SHARES[2:]) for m in MAGNITUDES]
    worst = max(excess, key=abs)
    jump = [median["median_of_means", e, 100.0] / median["median_of_means", e, 10.0] for e in SHARES[2:]]
    batches = BATCHES[:6] if settings.quick else BATCHES
    by_batch = np.stack(
        [sup_errors(_tables("trimmed", 0.0, 10.0, settings.range(16, 8), int(b)), target).mean(1) for b in batches], 1
    )
    slope = loglog_slope(batches, by_batch)
    checks = [
        *(_row(arm, found) for arm in ARMS),
        Check("robust limit by share .005, .01, .05, .1", limits.tolist(), "to 1e-4", [0.0302, 0.0578, 0.2435, 0.453],
              bool((np.abs(limits - [0.0302, 0.0578, 0.2435, 0.453]) < 1e-4).all())),
        Check("robust limit, R^2 of a line over .01-.1", _line(shares[1:], limits[1:])[2], "> .999", "> .999",
              _line(shares[1:], limits[1:])[2] > 0.999),
        Check("trimmed, magnitude 100 against 10 at .05 and .1, relative", [apart["trimmed", e] for e in SHARES[2:]],
              "medians within 5 %", [0.004, 0.0], all(abs(apart["trimmed", e]) < 0.05 for e in SHARES[2:])),
        Check(f"the same at .01, trim {_safer_trim():.4f} = share + 3 sqrt(share / n)", apart[SAFER, LOW],
              "medians within 10 %", None, abs(apart[SAFER, LOW]) < 0.1),
        Check("the same at .01, trim .02 (95 %)", [apart["trimmed", LOW], *spread], "medians within 10 %",
              0.013, absent=abs(apart["trimmed", LOW]) >= 0.1),
        Check("trimmed, R^2 of a line in the share", r2, "> .99", None, r2 > 0.99, paper="grows with the share",
              where="abstract"),
        Check("trimmed, error less that of the robust limit, largest in size; at .01 with the safer trim", worst,
              "reported: at most the distance below", 0.02),
        Check("the same at .01, trim .02", usual, "reported", 0.02),
        Check("trimmed, distance of the tables from their robust limit, by share, magnitude; .01 with the safer trim",
              far, f"each <= {APART:g}", 0.0, max(far.values()) <= APART),
        Check("no corruption: trimmed over vanilla", median["trimmed", 0.0, 10.0] / median["vanilla", 0.0, 10.0],
              "<= 1", 0.025 / 0.086, median["trimmed", 0.0, 10.0] <= median["vanilla", 0.0, 10.0],
              paper="as vanilla", where="abstract"),
        Check(f"no corruption: slope of the error in the batch, {batches[0]}-{batches[-1]} (95 %)",
              [slope.value, slope.low, slope.high], "interval meets -.5 +-.05", -0.5,
              slope.low <= -0.45 and slope.high >= -0.55),
        Check("median of means, magnitude 100 over 10 at .05 and .1: breaks in between", jump,
              "< 1.5, then > 5 (theory: .083)", [0.72 / 0.71, 53 / 5.56], jump[0] < 1.5 < 5 < jump[1]),
        Check("trimmed, slope in the share beside half of the two-point gap's", [rise, gaps[-1] / 2 / SHARES[-1]],
              "reported", 4.4),
        Check("trimmed at .01, mean over seeds by magnitude",
              {f"{m:g}": float(found["trimmed", 0.01, m].mean()) for m in MAGNITUDES}, "reported", [0.076, 0.102]),
        Check("vanilla's limit in the mean, magnitude 10, by share", means, "reported"),
    ]  # fmt: skip
    notes = [
        "Corrupted rewards cost trimmed means as much at magnitude 100 as at 10 from share .05 on. At .01 the trim of "
        ".02 is too near the share: now and then an epoch has more outliers at some pair than are trimmed, and pays of "
        "order magnitude / n. Over 160 seeds the medians are 12.5 % apart there, and 2 % with the safer trim. Where "
        "states are corrupted too, the local share is higher, and the same happens at larger shares.",
        "The conditions ask for the method's own limit, not for the smallest error: on this process the median, the "
        f"extreme trim, would come nearer to Q* ({medians[0]:.2f} off at .05, {medians[1]:.2f} at .1, exactly).",
        "Minimax optimality can't be shown by one learner: the slope in the share stands beside the two-point bound.",
    ]

    def plot(figure: Canvas) -> None:
        left, right = figure.subplots(1, 2)
        for arm, color in zip(ARMS, ("C3", "C1", "C4", "C0", "C2"), strict=True):
            for m, style in zip(MAGNITUDES, ("o-", "x--"), strict=True):
                label = NAMES.get(arm, arm) if m == MAGNITUDES[0] else None
                lw, ms, alpha = (5, 10, 0.4) if arm == "trimmed" else (1.5, 6, 1)  # others lie on top of it
                left.plot(
                    shares, [median[arm, e, m] for e in SHARES], style, color=color, label=label, lw=lw, ms=ms,
                    alpha=alpha,
                )  # fmt: skip
        fine = np.linspace(0.002, 0.1, 15)
        left.plot(fine, [np.abs(_limit(e) - target).max() for e in fine], "k-", lw=1,
                  label="robust limit, exact")  # fmt: skip
        left.plot(
            fine, [two_point_gap(e, world.gamma)[1] / 2 for e in fine], "k:", label="no method below (two points)"
        )
        left.set(
            yscale="log",
            xlabel="corrupted share",
            ylabel="sup-norm error, median over seeds",
            title="Error against corruption",
        )
        left.set_ylim(bottom=5e-4)
        left.legend(fontsize=7, loc="lower right", ncols=2, title="magnitude 10; dashed: 100", title_fontsize=7)
        right.loglog(batches, by_batch.T, color="0.8")
        right.loglog(batches, by_batch.mean(0), "o", label="mean over seeds")
        right.loglog(batches, np.exp(slope.level) * batches**slope.value, "C0-", label=f"fit, slope {slope.value:.3f}")
        half = by_batch.mean(0)[0] * np.sqrt(batches[0] / batches)
        right.loglog(batches, half, "k--", label="slope -1/2")
        right.set(xlabel="steps in an epoch", ylabel="sup-norm error", title="No corruption")
        right.legend()

    return Outcome(checks, notes, plot)


PARTS = {"brq": brq}


def _tables(arm: str, share: float, magnitude: float, seeds: range, batch: int = BATCH) -> Floats:
    """Q [seeds, last epochs, S, A]."""
    rule = Rule(RULES[arm], trim=_safer_trim() if arm == SAFER else None)
    corruption = Corruption(share, magnitude, "both" if arm == STATES else "none")
    history = q_learning(corrupt(0), seeds, rule, corruption, epochs=100, batch=batch, noise=NOISE)
    return np.asarray(history[:, -LAST:])


def _limit(share: float, trim: float | None = None) -> Floats:
    """Where trimmed Q-learning goes with epochs without end [S, A]; ``trim`` None: the usual one."""
    return robust_limit(corrupt(0), Corruption(share), NOISE, trim)


def _safer_trim() -> float:
    """The trim at the lowest share that makes more outliers rare at the pair that is visited least."""
    world = corrupt(0)
    policy = uniform_policy(world)
    visits = stationary(chain(world, policy)[0])[:, None] * policy
    return trim_for(LOW, int(BATCH * visits.min()))


def _ratio_interval(over: Floats, under: Floats) -> list[float]:
    """95 % bootstrap interval over seeds of the ratio of medians, less 1; the same seeds in both."""

    def ratio(a: Floats, b: Floats, axis: int) -> Floats:
        return np.asarray(np.median(a, axis) / np.median(b, axis) - 1)

    found = stats.bootstrap(
        (over, under), ratio, paired=True, n_resamples=1000, method="percentile", rng=np.random.default_rng(0)
    )
    return [float(v) for v in found.confidence_interval]


def _row(arm: str, found: dict[tuple[str, float, float], Floats]) -> Check:
    medians = [[float(np.median(found[arm, e, m])) for m in MAGNITUDES] for e in SHARES]
    return Check(f"{NAMES.get(arm, arm)}: error by share 0, .01, .05, .1, magnitude 10 then 100", medians, "reported",
                 EXPECTED[arm])  # fmt: skip


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Slope, intercept and R^2 of the least-squares line."""
    line = stats.linregress(x, y)
    return float(line.slope), float(line.intercept), float(line.rvalue**2)
