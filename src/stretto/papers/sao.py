"""SAO (arXiv 2607.07508): single rollouts have less variance than groups; tokens beyond the interval move nothing."""

from __future__ import annotations

import numpy as np

from stretto.data.arrays import Floats
from stretto.objectives import get
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.comparisons import compare
from stretto.papers.learning import with_learning
from stretto.tabular.sao.context_bandit import ContextBandit, group_scale
from stretto.tabular.sao.style_bandit import Baseline, Followed, StyleBandit, follow

ROLLOUTS, REPETITIONS = 64, 4000
GROUPS = (1, 8)
LAG, LEVEL = 16, 0.5
ARMS: dict[str, tuple[str, dict[str, object], Baseline, int]] = {
    "SAO, critic, K = 2": ("sao", {}, "critic", 1),
    "SAO, running mean": ("sao", {}, "running-mean", 1),
    "Dr. GRPO, groups of 8": ("grpo", {"std": False}, "own", 8),
    "RLOO, groups of 8": ("rloo", {"std": False}, "own", 8),
    "GRPO, groups of 8": ("grpo", {}, "own", 8),
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
    sao = _lagged(styles, "sao", {"clip_low": 0.8, "clip_high": 3.0}, updates)
    ppo = _lagged(styles, "ppo", {"baseline": "gae", "std": False}, updates)
    checks = [
        Check("variance of 64 rollouts, measured / law", {f"G = {n}": measured[n] / law[n] for n in GROUPS},
              "within 10 %", None, all(abs(measured[n] / law[n] - 1) < 0.1 for n in GROUPS)),
        Check("variance, singles: measured, law", [measured[1], law[1]], "reported", [0.00881, 0.00888]),
        Check("variance, groups of 8: measured, law", [measured[8], law[8]], "reported"),
        Check("gradient with the group's mean as baseline", scales, "1 - 1/G to 1e-9", None, off < 1e-9),
        Check("updates to recover from a style switch", {k: float(v.mean()) for k, v in recovery.items()}, "reported"),
        Check("critic against Dr. GRPO, share of seeds that recover sooner",
              float(np.mean(recovery["SAO, critic, K = 2"] < recovery["Dr. GRPO, groups of 8"])), "reported"),
        Check("lag 16: A < 0 and r > 4 that move", {"SAO": f"{sao.moved} of {sao.beyond}",
              "PPO": f"{ppo.moved} of {ppo.beyond}"}, "SAO exactly 0 of at least one", {"SAO": 0},
              sao.moved == 0 < sao.beyond),
    ]  # fmt: skip
    notes = [
        "Style switch at equal rollouts and equal step size. Dr. GRPO's gradient is smaller by 1 - 1/G; RLOO's isn't "
        "(the same groups otherwise). GRPO's division by the group's deviation makes rare successes weigh more.",
        "SAO's interval for coding, (.8, 3.0), at lag 16; PPO's clip lets A < 0 through however large the ratio.",
    ]

    def plot(figure: Canvas) -> None:
        left, right = figure.subplots(1, 2)
        groups = np.arange(1, 17)
        single, eight = law[1], law[8]
        left.plot(groups, single + (groups - 1) * (eight - single) / 7, label="law")
        left.plot(GROUPS, [measured[n] for n in GROUPS], "o", label="measured")
        left.set(xlabel="group size G", ylabel="variance of the gradient, 64 rollouts")
        left.legend()
        for name, run in runs.items():
            right.plot(run.j.mean(0)[: 4 * styles.flip], label=name)
        right.set(xlabel="update", ylabel="expected reward", title="The rewarded style flips every 100 updates")
        right.legend()

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
    objective = get(name, **options)
    return follow(styles, objective, baseline="critic", rollouts=ROLLOUTS, lag=LAG, lr=3.0, limit=4.0, updates=updates)
