"""SAO (arXiv 2607.07508): single rollouts have less variance than groups; tokens beyond the interval move nothing."""

from __future__ import annotations

import numpy as np

from stretto.data.arrays import Floats
from stretto.objectives import get
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.comparisons import compare
from stretto.papers.drawing import legend_below
from stretto.papers.effects import effect
from stretto.papers.learning import with_learning
from stretto.tabular.multiplier import both_signs, multipliers
from stretto.tabular.sao.context_bandit import ContextBandit, group_scale
from stretto.tabular.sao.style_bandit import Baseline, Followed, StyleBandit, follow

ROLLOUTS, REPETITIONS = 64, 4000
GROUPS = (1, 8)
LAG, LEVEL = 16, 0.5
CODING = {"clip_low": 0.8, "clip_high": 3.0}
"""SAO's interval for coding; that for tool-integrated reasoning is the objective's default."""
RATIOS = np.array([0.05, 0.19, 0.21, 0.5, 0.69, 0.71, 1.0, 1.7, 3.99, 4.01, 5.99, 6.01, 9.0])
SAO, GRPO = "SAO, critic, K = 2", "GRPO, groups of 8"
STYLES = ("-", "--", "-", ":", "-")
"""Of the arms' lines, three of which lie on one another."""
ARMS: dict[str, tuple[str, dict[str, object], Baseline, int]] = {
    SAO: ("sao", {}, "critic", 1),
    "SAO, running mean": ("sao", {}, "running-mean", 1),
    "Dr. GRPO, groups of 8": ("grpo", {"std": False}, "own", 8),
    "RLOO, groups of 8": ("rloo", {"std": False}, "own", 8),
    GRPO: ("grpo", {}, "own", 8),
}


def reproduce(settings: Settings) -> Outcome:
    """The variance law and the group baseline's shrinkage, the style switch, and lag 16."""
    law, measured = _variance(settings)
    scales = {n: group_scale(get("grpo", std=False), *_three_actions(), n) for n in (2, 3, 4)}
    off = max(abs(scale - (1 - 1 / n)) for n, scale in scales.items())
    styles = StyleBandit(settings.range(20, 8))
    updates = (2 if settings.quick else 6) * styles.flip
    runs = {name: _switched(styles, arm, updates) for name, arm in ARMS.items()}
    recovery = {name: run.recovery(styles.flip, LEVEL) for name, run in runs.items()}
    settings.say(f"SAO: style switch, {len(styles.seeds)} seeds")
    sao = _lagged(styles, "sao", dict(CODING), updates)
    ppo = _lagged(styles, "ppo", {"baseline": "gae", "std": False}, updates)
    rules = {"tools": _off_rule({}), "coding": _off_rule(CODING)}
    checks = [
        Check("multiplier of grad log pi at 13 ratios, A = 1 and -1: largest distance from f(r) A", rules,
              "< 1e-12: r inside the interval, 0 outside, for both signs", None, max(rules.values()) < 1e-12),
        Check("variance of 64 rollouts, measured / law", {f"G = {n}": measured[n] / law[n] for n in GROUPS},
              "within 10 %", None, all(abs(measured[n] / law[n] - 1) < 0.1 for n in GROUPS)),
        Check("variance, singles: measured, law", [measured[1], law[1]], "reported", [0.00881, 0.00888]),
        Check("variance, groups of 8: measured, law", [measured[8], law[8]], "reported"),
        Check("gradient with the group's mean as baseline", scales, "1 - 1/G to 1e-9", None, off < 1e-9),
        Check("lag 16: tokens beyond the interval, pulled back to r = 1, that move (A > 0 below, A < 0 above)",
              {"SAO": _moved(sao), "PPO": _moved(ppo)}, "SAO none of at least one on either side, PPO all", {"SAO": 0},
              sao.moved == (0, 0) and ppo.moved == ppo.beyond and min(sao.beyond) > 0),
        Check("updates to recover from a style switch", {k: float(v.mean()) for k, v in recovery.items()}, "reported"),
        *(effect(f"style switch: updates to recover, {name} - {SAO}", recovery[name],
                 recovery[SAO]) for name in ARMS if name != SAO),
    ]  # fmt: skip
    notes = [
        f"Style switch at equal rollouts and equal step size: GRPO recovers in {recovery[GRPO].mean():.1f} updates, "
        f"SAO in {recovery[SAO].mean():.1f}. GRPO's division by the group's deviation makes rare successes weigh more; "
        "Dr. GRPO and RLOO don't divide (and Dr. GRPO's gradient is smaller by 1 - 1/G).",
        "The lagged tokens are counted with SAO's interval for coding, (.8, 3.0): r < .2 or r > 4. PPO's clip lets "
        "what points back to r = 1 through, however far the ratio is.",
        "The paper's own figures are of language models (AIME25: SAO 97.3, running mean 79.8, GRPO with the two-sided "
        "mask 93.5); none of them is measured here.",
    ]

    def plot(figure: Canvas) -> None:
        left, right = figure.subplots(1, 2)
        groups = np.arange(1, 17)
        single, eight = law[1], law[8]
        left.plot(groups, single + (groups - 1) * (eight - single) / 7, label="law")
        left.plot(GROUPS, [measured[n] for n in GROUPS], "o", label="measured")
        left.set(xlabel="group size G", ylabel="variance of the gradient", title="64 rollouts in groups of G")
        legend_below(left)
        for (name, run), style in zip(runs.items(), STYLES, strict=True):
            right.plot(run.j.mean(0)[: 4 * styles.flip], style, label=name)
        right.set(xlabel="update", ylabel="expected reward", title="The rewarded style flips every 100 updates")
        legend_below(right)

    return with_learning(Outcome(checks, notes, plot), compare("sao", settings))


def _variance(settings: Settings) -> tuple[dict[int, float], dict[int, float]]:
    """By group size: the law, and as measured on the objective."""
    world = ContextBandit(seed=settings.first_seed)
    g = np.random.default_rng((settings.first_seed, 1))
    measured = {n: world.measured(get("sao"), ROLLOUTS, n, REPETITIONS, g) for n in GROUPS}
    return {n: world.law(ROLLOUTS, n) for n in GROUPS}, measured


def _three_actions() -> tuple[Floats, Floats]:
    small = ContextBandit(contexts=1, actions=3)
    return small.policy[0], small.reward[0]


def _switched(styles: StyleBandit, arm: tuple[str, dict[str, object], Baseline, int], updates: int) -> Followed:
    name, options, baseline, group = arm
    return follow(styles, get(name, **options), baseline=baseline, group=group, rollouts=ROLLOUTS, updates=updates)


def _lagged(styles: StyleBandit, name: str, options: dict[str, object], updates: int) -> Followed:
    """At lag 16, with steps large enough that ratios leave the interval."""
    outside = (1 - CODING["clip_low"], 1 + CODING["clip_high"])
    objective = get(name, **options)
    return follow(
        styles, objective, baseline="critic", rollouts=ROLLOUTS, lag=LAG, lr=3.0, limits=outside, updates=updates
    )


def _moved(run: Followed) -> str:
    return " and ".join(f"{moved} of {beyond}" for moved, beyond in zip(run.moved, run.beyond, strict=True))


def _off_rule(options: dict[str, float]) -> float:
    """Largest distance of what SAO multiplies grad log pi by from f(r) A, computed from the formula."""
    low, high = options.get("clip_low", 0.3), options.get("clip_high", 5.0)
    ratios, advantages = both_signs(RATIOS)
    rule = np.where((ratios > 1 - low) & (ratios < 1 + high), ratios, 0.0) * advantages
    return float(np.abs(multipliers(get("sao", **options), ratios, advantages) - rule).max())
