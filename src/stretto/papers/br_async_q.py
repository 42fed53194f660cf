"""BR-Async-Q: Q-learning with trimmed means under corrupted rewards and states, against its exact limits.

Only the abstract is public: the environment's constants and the schedule are [inferred].
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.parts import together
from stretto.tabular.arguments import Floats
from stretto.tabular.q import (
    Corruption,
    Rule,
    best_q,
    corrupt,
    mean_limit,
    q_learning,
    robust_limit,
    sup_errors,
    two_point_gap,
)  # fmt: skip
from stretto.tabular.q.world import NOISE
from stretto.tabular.slopes import loglog_slope

SHARES = (0.0, 0.01, 0.05, 0.1)
MAGNITUDES = (10.0, 100.0)
LAST = 10
STATES = "trimmed, states too"
ARMS = ("vanilla", "mean", "median_of_means", "trimmed", STATES)
NAMES = {"median_of_means": "median of means", STATES: "trimmed, state corruption"}
BATCHES = 250 * 2 ** np.arange(8)
PUBLISHED: dict[str, list[list[float]]] = {
    "vanilla": [[0.086, 0.086], [0.64, 5.4], [2.84, 25.3], [5.67, 50.5]],
    "mean": [[0.025, 0.025], [0.57, 5.3], [2.76, 25.6], [5.47, 50.7]],
    "median_of_means": [[0.034, 0.034], [0.115, 0.115], [0.71, 0.72], [5.56, 53]],
    "trimmed": [[0.025, 0.025], [0.077, 0.078], [0.264, 0.265], [0.472, 0.472]],
    STATES: [[0.025, 0.025], [0.083, 0.104], [0.28, 0.298], [0.498, 0.499]],
}
"""By corrupted share, then magnitude: of the specification; the paper's own aren't public."""


def reproduce(settings: Settings) -> Outcome:
    """All parts."""
    return together(PARTS, settings)


def brq(settings: Settings) -> Outcome:
    """Error against the corrupted share, for each learner and magnitude, and against the batch without corruption."""
    world = corrupt(0)
    target = best_q(world)
    seeds = {arm: settings.range(16, 16 if arm == "trimmed" else 3) for arm in ARMS}  # the conditions are on trimmed
    found = {
        (arm, e, m): _errors(arm, e, m, seeds[arm]) for e in SHARES for arm in ARMS for m in MAGNITUDES if e or m == 10
    }
    for arm in ARMS:
        found[arm, 0.0, 100.0] = found[arm, 0.0, 10.0]
    median = {k: float(np.median(v)) for k, v in found.items()}
    settings.say(f"BR-Async-Q: {len(found)} cells")
    limits = np.array([np.abs(robust_limit(world, Corruption(e), NOISE) - target).max() for e in (0.005, *SHARES[1:])])
    means = [float(np.abs(mean_limit(world, Corruption(e)) - target).max()) for e in SHARES]
    gaps = [two_point_gap(e, world.gamma)[1] for e in SHARES]
    shares = np.array(SHARES)
    trimmed = np.array([median["trimmed", e, 10.0] for e in SHARES])
    rise, _, r2 = _line(shares, trimmed)
    ratios = [median["trimmed", e, 100.0] / median["trimmed", e, 10.0] - 1 for e in SHARES[1:]]
    excess = [median["trimmed", e, m] - limit for e, limit in zip(SHARES[1:], limits[1:], strict=True)
              for m in MAGNITUDES]  # fmt: skip
    jump = [median["median_of_means", e, 100.0] / median["median_of_means", e, 10.0] for e in SHARES[2:]]
    batches = BATCHES[:6] if settings.quick else BATCHES
    by_batch = np.stack([_errors("trimmed", 0.0, 10.0, settings.range(16, 8), int(b)) for b in batches], 1)
    slope = loglog_slope(batches, by_batch)
    checks = [
        *(_row(arm, found) for arm in ARMS),
        Check("robust limit by share .005, .01, .05, .1", limits.tolist(), "to 1e-4", [0.0302, 0.0578, 0.2435, 0.453],
              bool((np.abs(limits - [0.0302, 0.0578, 0.2435, 0.453]) < 1e-4).all())),
        Check("robust limit, R^2 of a line over .01-.1", _line(shares[1:], limits[1:])[2], "> .999", "> .999",
              _line(shares[1:], limits[1:])[2] > 0.999),
        Check("trimmed, magnitude 100 against 10, relative, by share .01, .05, .1", ratios,
              "medians within 5 % from .05 on, 10 % below", None,
              abs(ratios[0]) < 0.1 and abs(ratios[1]) < 0.05 and abs(ratios[2]) < 0.05),
        Check("trimmed, R^2 of a line in the share", r2, "> .99", None, r2 > 0.99),
        Check("trimmed, worst excess over the robust limit", max(excess), "< .03", None, max(excess) < 0.03),
        Check("no corruption: trimmed over vanilla", median["trimmed", 0.0, 10.0] / median["vanilla", 0.0, 10.0],
              "<= 1", 0.025 / 0.086, median["trimmed", 0.0, 10.0] <= median["vanilla", 0.0, 10.0]),
        Check(f"no corruption: slope of the error in the batch, {batches[0]}-{batches[-1]} (95 %)",
              [slope.value, slope.low, slope.high], "-.5 +-.05", -0.5, abs(slope.value + 0.5) <= 0.05),
        Check("median of means, magnitude 100 over 10 at .05 and .1: breaks in between", jump,
              "< 1.5, then > 5 (theory: at 1 - 2^(-1/8) = .083)", [0.72 / 0.71, 53 / 5.56], jump[0] < 1.5 < 5 < jump[1]),
        Check("trimmed, slope in the share beside half of the two-point gap's", [rise, gaps[-1] / 2 / SHARES[-1]],
              "reported", 4.4),
        Check("trimmed at .01, mean over seeds by magnitude",
              {f"{m:g}": float(found["trimmed", 0.01, m].mean()) for m in MAGNITUDES}, "reported", [0.076, 0.102]),
        Check("vanilla's limit in the mean, magnitude 10, by share", means, "reported"),
    ]  # fmt: skip
    notes = [
        "Corrupted rewards cost trimmed means about as much at magnitude 100 as at 10. That holds for medians: now and "
        "then an epoch has more outliers at some pair than are trimmed, which costs an error of order magnitude / n. "
        "With corrupted states the local share is higher and this happens more often.",
        "Minimax optimality can't be shown by one learner: the slope in the share stands beside the two-point bound.",
    ]

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for arm, color in zip(ARMS, ("C3", "C1", "C4", "C0", "C2"), strict=True):
            for m, style in zip(MAGNITUDES, ("o-", "x--"), strict=True):
                label = f"{NAMES.get(arm, arm)}, magnitude {m:g}"
                left.plot(shares, [median[arm, e, m] for e in SHARES], style, color=color, label=label)
        fine = np.linspace(0.002, 0.1, 15)
        left.plot(fine, [np.abs(robust_limit(world, Corruption(e), NOISE) - target).max() for e in fine], "k-", lw=1,
                  label="robust limit, exact")  # fmt: skip
        left.plot(
            fine, [two_point_gap(e, world.gamma)[1] / 2 for e in fine], "k:", label="no method below (two points)"
        )
        left.set(yscale="log", xlabel="corrupted share", ylabel="sup-norm error, median over seeds")
        left.legend(fontsize=6)
        right.loglog(batches, by_batch.T, color="0.8")
        right.loglog(batches, by_batch.mean(0), "o", label="mean over seeds")
        right.loglog(batches, np.exp(slope.level) * batches**slope.value, "C0-", label=f"fit, slope {slope.value:.3f}")
        half = by_batch.mean(0)[0] * np.sqrt(batches[0] / batches)
        right.loglog(batches, half, "k--", label="slope -1/2")
        right.set(xlabel="steps in an epoch", ylabel="sup-norm error", title="No corruption")
        right.legend()

    return Outcome(checks, notes, draw)


PARTS = {"brq": brq}


def _errors(arm: str, share: float, magnitude: float, seeds: range, batch: int = 8000) -> Floats:
    """[seeds]: mean over the last epochs of the sup-norm error."""
    world = corrupt(0)
    rule = Rule("trimmed" if arm == STATES else arm)  # type: ignore[arg-type]
    corruption = Corruption(share, magnitude, "both" if arm == STATES else "none")
    history = q_learning(world, seeds, rule, corruption, epochs=100, batch=batch, noise=NOISE)
    return sup_errors(history[:, -LAST:], best_q(world)).mean(1)


def _row(arm: str, found: dict[tuple[str, float, float], Floats]) -> Check:
    medians = [[float(np.median(found[arm, e, m])) for m in MAGNITUDES] for e in SHARES]
    return Check(f"{NAMES.get(arm, arm)}: error by share 0, .01, .05, .1, magnitude 10 then 100", medians, "reported",
                 PUBLISHED[arm])  # fmt: skip


def _line(x: Floats, y: Floats) -> tuple[float, float, float]:
    """Slope, intercept and R^2 of the least-squares line."""
    slope, level = np.polyfit(x, y, 1)
    rest = y - slope * x - level
    return float(slope), float(level), 1 - float((rest**2).sum() / ((y - y.mean()) ** 2).sum())
