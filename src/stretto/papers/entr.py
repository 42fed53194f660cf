"""ENTR (arXiv 2607.22186): how log-ratios scale with entropy, where masks fall, stale learning on a noisy engine."""

from __future__ import annotations

import numpy as np

from stretto.objectives import get
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.comparisons import compare
from stretto.papers.drawing import legend_below
from stretto.papers.effects import required
from stretto.papers.learning import with_learning
from stretto.tabular.entr.mask_placement import EPS, Region, placement, shares
from stretto.tabular.entr.token_noise import Law, Noise, Positions, first_order_law, positions
from stretto.tabular.lagged.learning import Plan, train
from stretto.tabular.lagged.probe import Probe
from stretto.tabular.lagged.world import World

TAU, SHARE = 0.2, 0.05
NOISES: tuple[Noise, ...] = ("drift", "engine")
PAIRS = [(0.0065, 0.0014), (1.29, 0.64), (1.54, 0.72), (2.26, 0.82), (3.26, 0.93), (4.14, 0.98)]
HEIGHTS = {"drift": {"all": 1.56, "fixed": 2.36, "entr": 1.44}}
CORRELATIONS = {"drift": {"fixed": 0.151, "entr": -0.024}}
REGIONS: tuple[Region, ...] = ("fixed", "entr")
METHODS: dict[str, dict[str, object]] = {"grpo": {}, "icepop": {}, "entr": {"tau": TAU, "eps": EPS}}


def reproduce(settings: Settings) -> Outcome:
    """A: mean squared log-ratio by entropy. B: entropy of masked tokens at an equal rate. C: learning by lag.

    The stream of A's reference is seed 0, that of B's seed 1; those with conditions in B are others."""
    law = first_order_law(0)
    seen: dict[Noise, Positions] = {noise: positions(noise, 1) for noise in NOISES}
    first = settings.first_seed
    others = range(first + 2, first + 34)
    settings.say("noise placed")
    checks = [
        *scale("seed 0", law),
        pairs(law),
        *scale("another seed", first_order_law(first + 1)),
        *(check for noise in NOISES for check in placements(noise, seen[noise])),
        *(check for noise in NOISES for check in streams(noise, others)),
        *learning(settings),
    ]
    notes = [
        "The reference's |corr| < 0.05 under drift is met by its own stream and by about 60 % of all others: a bound "
        "on one stream says nothing. What is asked instead, of all streams together: ENTR's correlation with entropy "
        "is less than half of a fixed threshold's (a half: our choice, made when the ratio was known to be a third).",
        f"tau = {TAU} and eps = {EPS} are unpublished choices; this tau masks far more than the 0.1 to 1 % that it "
        "should once the sampler is old. Learning is reported without a condition.",
        "The paper's own figures are of language models (BrowseComp-Plus: GRPO 28.91, IcePop 32.53, KPop 34.94, "
        "ENTR 37.34); none of them is measured here.",
    ]  # fmt: skip
    outcome = Outcome(checks, notes, lambda figure: plot_figure(figure, law, seen))
    return with_learning(outcome, compare("entr", settings))


def scale(stream: str, law: Law) -> list[Check]:
    """Checks A: is E d^2 = sigma^2 (1 - sum p^2) to first order, and below sigma^2 H? Each of 25 temperatures is a mean
    of 4000 squares, whose standard error is at most sqrt(2/4000) = 2.2 %; that of their mean is 0.45 %."""
    off = law.scale / law.collision - 1
    above = float((law.scale / law.entropy).max())
    worst, mean = float(np.abs(off).max()), float(off.mean())
    return [
        Check(f"E d^2 off sigma^2 (1 - sum p^2), {stream}: mean over temperatures", mean, "within 2 %", None,
              abs(mean) < 0.02),
        Check(f"E d^2 off sigma^2 (1 - sum p^2), {stream}: the worst temperature", worst,
              "within 11 %, five standard errors", 0.033 if stream == "seed 0" else None, worst < 0.11),
        Check(f"E d^2 / (sigma^2 H) at most, {stream}", above, "<= 1.02", None, above <= 1.02),
    ]  # fmt: skip


def pairs(law: Law) -> Check:
    """Check of the reference's pairs of entropy H and 1 - sum p^2."""
    rows = np.stack([law.entropy, law.collision], 1)
    found = [rows[np.abs(rows - pair).sum(1).argmin()].tolist() for pair in PAIRS]
    digits = [4 if h < 0.1 else 2 for h, _ in PAIRS]
    near = all(tuple(round(x, n) for x in row) == pair for row, n, pair in zip(found, digits, PAIRS, strict=True))
    return Check("pairs of H and 1 - sum p^2", found, "to the digits shown", PAIRS, near)


def placements(noise: Noise, seen: Positions) -> list[Check]:
    """B on the reference's stream (seed 1): at which entropies tokens are dropped."""
    fixed, entr = placement(seen, "fixed"), placement(seen, "entr")
    heights = {"all": float(seen.entropy.mean()), "fixed": fixed.entropy, "entr": entr.entropy}
    return [
        Check(f"mean H of masked tokens, {noise}, stream 1", heights, "reported", HEIGHTS.get(noise)),
        Check(f"corr(mask, H), {noise}, stream 1", {"fixed": fixed.correlation, "entr": entr.correlation}, "reported",
              CORRELATIONS.get(noise)),
    ]  # fmt: skip


def streams(noise: Noise, seeds: range) -> list[Check]:
    """Checks B, over the streams ``seeds``: that as many tokens are dropped as asked for, and where, by intervals."""
    seen = [positions(noise, seed) for seed in seeds]
    placed = {region: [placement(s, region, SHARE) for s in seen] for region in REGIONS}
    where = f"{noise}, {len(seeds)} streams"
    missed = max(abs(p.share - SHARE) for found in placed.values() for p in found)
    fixed, entr = (np.array([p.correlation for p in placed[region]]) for region in REGIONS)
    above = np.array([p.entropy for p in placed["fixed"]]) - [float(s.entropy.mean()) for s in seen]
    if noise == "drift":
        depends = required(f"|corr(mask, H)|, {where}: fixed / 2 - entr", fixed / 2, np.abs(entr))
    else:
        depends = required(f"- corr(mask, H) of entr, {where}", -entr)
    return [
        Check(f"share of tokens dropped at the threshold for {SHARE:.0%}, {where}: largest error", missed,
              "at most 2 of 6000 tokens", 0.0, missed <= 2 / 6000),
        required(f"mean H of what a fixed threshold drops, {where}: above that of all", above),
        depends,
        Check(f"corr(mask, H), {where}: mean, and share of streams with |entr| < 0.05",
              {"fixed": float(fixed.mean()), "entr": float(entr.mean()), "share": float((np.abs(entr) < 0.05).mean())},
              "reported"),
    ]  # fmt: skip


def learning(settings: Settings) -> list[Check]:
    """C: final return where the engine's probabilities carry noise, by refresh interval S."""
    checks = []
    for s in (1, 8, 30):
        probes = {name: Probe(get(name, **options)) for name, options in METHODS.items()}
        plan, seeds = Plan(lag=s, refresh="window", steps=150), settings.range(5, quick=1)
        final = {
            name: float(np.mean([train(World(seed=i, engine_noise=3e-4), probe, plan, seed=i).final for i in seeds]))
            for name, probe in probes.items()
        }
        masked = probes["entr"].metrics["gate/masked_tokens"]
        checks += [
            Check(f"final return, S = {s}", final, "reported"),
            Check(f"share that entr masks, S = {s}", masked, "reported", "0.001 to 0.01"),
        ]
        settings.say(f"learning at S = {s} done")
    return checks


def plot_figure(figure: Canvas, law: Law, seen: dict[Noise, Positions]) -> None:
    """Plot the scale of d by entropy (left) and the masked share by entropy (right)."""
    left, *rest = figure.subplots(1, 3)
    left.plot(law.entropy, law.scale, "o", label="E d^2 / sigma^2")
    left.plot(law.entropy, law.collision, "x", label="1 - sum p^2")
    left.plot([0, 1.2], [0, 1.2], "--", label="H")
    left.set(xlabel="entropy H, nats", title="Size of log-ratios")
    legend_below(left)
    for axis, (noise, there) in zip(rest, seen.items(), strict=True):
        axis.plot(*shares(there, "fixed"), marker="o", label="fixed threshold")
        axis.plot(*shares(there, "entr"), marker="o", label="entr")
        axis.set(xlabel="entropy H, nats", ylabel="masked share", title=f"Masked tokens: {noise}", ylim=(0, None))
        legend_below(axis)
