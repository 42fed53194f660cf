"""Closed-loop PPO-Clip: rates of actor and critic, how late a critic may be, coverage and depth, parts of the error.

Worlds, step sizes and schedules are ours [inferred]: the paper's abstract names mechanisms and rates, no instance.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.papers.closed_loop_ppo_delay import delay
from stretto.papers.closed_loop_ppo_depth import horizon
from stretto.papers.closed_loop_ppo_rate import rate
from stretto.papers.parts import together
from stretto.tabular.delay import Delays
from stretto.tabular.ppo import Lateness, TabularPPO, layered, ppo_tabular
from stretto.tabular.ppo.coupling import split_update

EARLY = 50
NOTHING = 1e-10
"""Parts below this are rounding errors; the figure draws them at this height."""


def coupling(settings: Settings) -> Outcome:
    """Reported: epochs, clip and batch size against both errors, and where the first epoch's error comes from."""
    world, seeds, length, tau = layered(0), settings.range(16, 4), 500 if settings.quick else 2000, 4
    late = Lateness(Delays("constant", tau))
    changes = {
        "default": TabularPPO(), "E = 1": TabularPPO(epochs=1), "E = 4": TabularPPO(epochs=4),
        "E = 8": TabularPPO(epochs=8), "c = .05": TabularPPO(clip=0.05), "c = .02": TabularPPO(clip=0.02),
        "no clip": TabularPPO(clip=1e9), "n = 2": TabularPPO(episodes=2), "n = 32": TabularPPO(episodes=32),
    }  # fmt: skip
    shares: dict[str, dict[str, float]] = {}
    checks = []
    for name, options in changes.items():
        runs = ppo_tabular(world, options, length, seeds, late)
        early = ppo_tabular(world, options, EARLY, seeds, late)
        ends = zip(early.theta, early.old_theta, early.old_critic, strict=True)
        splits = [split_update(world, *end, options.lam, options.clip, options.episodes).squares for end in ends]
        shares[name] = {part: float(np.mean([s[part] for s in splits])) for part in splits[0]}
        found = {"mean |grad J|^2": runs.slope.mean(), "critic error": runs.error[:, length // 2 :].mean(),
                 "clipped, last epoch": runs.clipped[:, -1].mean(), **shares[name]}  # fmt: skip
        figures = {part: float(f"{value:.2g}") for part, value in found.items()}
        checks.append(Check(f"{name}: errors; squares of the first epoch's parts", figures, "reported"))
        settings.say(f"ppo-coupling: {name}")
    notes = [f"{length} iterations, delay {tau}. The parts are squared norms after {EARLY} iterations, means over "
             "seeds: stale samples, critic, clip are exact biases; batch is the variance of n episodes."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        axis = figure.subplots()
        for k, part in enumerate(("batch", "clip", "critic", "stale", "gradient")):
            heights = [max(s[part], NOTHING) for s in shares.values()]
            axis.bar(np.arange(len(shares)) + 0.16 * k, heights, 0.16, label=part)
        axis.set(yscale="log", ylim=(NOTHING / 10, 100), ylabel=f"squared norm (at {NOTHING:g}: zero)",
                 title="First epoch: gradient, biases, batch")  # fmt: skip
        axis.set_xticks(np.arange(len(shares)) + 0.3, list(shares), fontsize=8)
        axis.legend(fontsize=7, loc="upper center", ncols=5)

    return Outcome(checks, notes, plot)


PARTS = {"ppo-rate": rate, "ppo-delay": delay, "ppo-horizon": horizon, "ppo-coupling": coupling}


def reproduce(settings: Settings) -> Outcome:
    """All four parts: rate, delay, horizon, coupling."""
    found = together(PARTS, settings)
    only = ("Only the abstract is public: rates and mechanisms are the paper's, worlds, constants and all figures are "
            "ours.")  # fmt: skip
    return dataclasses.replace(found, notes=[only, *found.notes])
