"""Closed-loop PPO, part ``ppo-delay``: how large a critic step may be when the pair is late; the actor stands still."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stretto.data.arrays import Floats
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.tabular.collapse.stability import spectral_radius
from stretto.tabular.delay import Delays
from stretto.tabular.ppo import Lateness, Layered, TabularPPO, layered, ppo_tabular
from stretto.tabular.ppo import delay_oracle as exact
from stretto.tabular.ppo.measure import growth
from stretto.tabular.ppo.oracle import occupancy

STATIONARY = {0: (0.049823, 0.135702, 0.712737), 2: (0.016757, 0.048249, 0.246448), 16: (0.002580, 0.007382, 0.035584)}
"""By delay: exact critic error at each of the ``FRACTIONS`` of the threshold, from the specification."""
FRACTIONS, BEYOND, BATCH = (0.25, 0.5, 0.9), 1.15, 64


def delay(settings: Settings) -> Outcome:
    """The critic error of a frozen actor is the one that the second-moment oracle gives, and beyond the delay threshold
    it grows as the mean dynamics say."""
    world, seeds = layered(0), settings.range(16)
    uniform = world.uniform()
    d = float(occupancy(world, uniform).max())
    length, kept, fractions = (3000, 2000, (0.5,)) if settings.quick else (6000, 4000, FRACTIONS)

    def level(tau: int, fraction: float) -> float:
        step = fraction * exact.largest_step(world, uniform, tau)
        return exact.stationary_critic_error(world, uniform, step, BATCH, tau)

    checks: list[Check] = []
    levels: dict[int, list[float]] = {}
    for tau, expected in STATIONARY.items():
        settings.say(f"ppo-delay: tau = {tau}")
        limit = exact.largest_step(world, uniform, tau)
        table = [level(tau, f) for f in FRACTIONS]
        levels[tau] = [float(_frozen(world, f * limit, tau, length, seeds)[:, -kept:].mean()) for f in fractions]
        ratios = [seen / level(tau, f) for seen, f in zip(levels[tau], fractions, strict=True)]
        off = max(abs(ratio - 1) for ratio in ratios)
        wrong = float(np.abs(np.array(table) / expected - 1).max())
        checks.append(Check(f"tau = {tau}: exact critic error at .25, .5, .9 of the threshold", table,
                            "as tabulated, to the digits shown", expected, wrong < 5e-4))  # fmt: skip
        checks.append(Check(f"tau = {tau}: simulated over exact, {fractions}", ratios, "within 5 %", None, off < 0.05))
        step = BEYOND * limit
        predicted = exact.mean_growth(world, uniform, step, tau)
        most, folds = (4000, 100) if settings.quick else (6000, 250)  # e^(2 folds) is still a float
        grown = growth(_frozen(world, step, tau, int(min(most, folds / predicted)), seeds))
        bounded = math.isfinite(level(tau, BEYOND))
        single = exact.sampled_growth(d, step, BATCH)
        condition = "within 5 % of the mean's, no stationary error" if tau else "reported: visits slow a single run"
        checks.append(Check(f"tau = {tau}: growth at 1.15 of the threshold", grown, condition,
                            predicted if tau else {"mean": predicted, "single run": single},
                            (abs(grown / predicted - 1) < 0.05 and not bounded) if tau else None))  # fmt: skip
    rule = {t: 1.3 / (d * (2 * t + 1)) for t in (2, 16)}
    inside = [round(exact.stationary_critic_error(world, uniform, b, BATCH, t), 4) for t, b in rule.items()]
    few = exact.second_moment_operator(d, 0.9 * exact.largest_step(world, uniform, 0), 8, 0)
    notes = [f"The simple rule beta max d (2 tau + 1) <= 1 is sufficient, not necessary: 1.3 times beyond it the "
             f"stationary error is {inside[0]} at tau = 2, {inside[1]} at 16.",
             f"With 8 episodes, no delay and .9 of the threshold the second moment grows by {spectral_radius(few):.3f} "
             "an iteration (above 1: there is no stationary level to simulate)."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        axis, map_ = figure.subplots(1, 2)
        for tau in STATIONARY:
            f = np.linspace(0.05, 1.0, 60)
            axis.semilogy(f, [level(tau, x) for x in f], label=f"tau = {tau}, exact")
            axis.semilogy(fractions, levels[tau], "ko", ms=3)
        axis.set(
            xlabel="critic step / threshold", ylabel="stationary critic error", title="Frozen actor; points: simulated"
        )
        axis.legend(fontsize=7)
        taus, steps = np.arange(17), np.geomspace(0.1, 8, 60)
        cells = [[exact.stationary_critic_error(world, uniform, b, BATCH, int(t)) for t in taus] for b in steps]
        shown = map_.pcolormesh(taus, steps, np.log10(np.where(np.isfinite(cells), cells, np.nan)), shading="nearest")
        figure.colorbar(shown, ax=map_, label="log10 critic error (white: none)")
        map_.plot(taus, [exact.largest_step(world, uniform, int(t)) for t in taus], "r", label="threshold of the mean")
        map_.plot(taus, 1 / (2 * taus + 1) / d, "k--", label="beta max d (2 tau + 1) = 1")
        map_.set(xlabel="delay tau", ylabel="critic step", yscale="log", ylim=(steps[0], steps[-1]), xticks=taus[::4])
        map_.set_title("Stationary critic error")
        map_.legend(fontsize=7)

    return Outcome(checks, notes, plot)


def _frozen(world: Layered, step: float, tau: int, length: int, seeds: Sequence[int]) -> Floats:
    """Critic errors [runs, T+1] under the uniform policy with a constant step."""
    options = TabularPPO(episodes=BATCH, epochs=0, critic_step=step, critic_power=0)
    return ppo_tabular(world, options, length, seeds, Lateness(Delays("constant", tau))).error
