"""Closed-loop PPO, part ``ppo-horizon``: episodes to a return against depth, with and without coverage."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stretto.data.arrays import Floats
from stretto.observe.canvas import Canvas
from stretto.papers.base import Check, Outcome, Settings
from stretto.tabular.ppo import Layered, TabularPPO, layered, lock, ppo_tabular
from stretto.tabular.ppo.oracle import gain, gradient, optimal_gain
from stretto.tabular.slopes import loglog_slope

COVERED, LOCKS = {2: 6.1e3, 4: 10.8e3, 8: 34e3}, {2: 80, 3: 240, 4: 780, 5: 5.8e3}
"""Median episodes to the goal by layers: our reference runs of 16 seeds."""
ROOM = {"covered": 2.0, "lock": 3.0}
"""Factor by which a median may differ from them: four standard errors of two medians of 16 seeds."""
MOST = 10_000


def horizon(settings: Settings) -> Outcome:
    """Episodes to a return: polynomial in the depth where every state is covered, a factor A a layer on the lock."""
    seeds = settings.range(16)
    covered = {}
    for layers in COVERED:
        world = layered(0, layers)
        low = gain(world, world.uniform())
        covered[layers] = _episodes(world, low + 0.9 * (optimal_gain(world) - low), seeds)
        settings.say(f"ppo-horizon: covered, {layers} layers")
    locks = {layers: _episodes(lock(layers), 0.5, settings.range(256)) for layers in LOCKS}
    slope = _slope(covered)
    medians = {h: float(np.median(e)) for h, e in locks.items()}
    factors = {h: medians[h] / medians[h - 1] if math.isfinite(medians[h]) else math.inf for h in LOCKS if h >= 4}
    actions = lock(2).actions
    checks = [
        _near("covered: median episodes to 90 % of the gain, by layers", covered, COVERED, ROOM["covered"]),
        Check("covered: log-log slope of the medians, 95 % interval", slope, "<= 3", 1.2, slope[0] <= 3,
              paper="polynomial", where="abstract"),
        _near("lock: median episodes to J >= .5, by layers", locks, LOCKS, ROOM["lock"]),
        Check("lock: factor a layer, layers >= 4", factors, f"each >= {actions}, the chance to be covered falls by it",
              {h: LOCKS[h] / LOCKS[h - 1] for h in factors}, min(factors.values()) >= actions),
    ]  # fmt: skip
    start = [float(f"{(gradient(lock(h), lock(h).uniform()) ** 2).sum():.2g}") for h in (2, 8)]
    notes = [f"Stationarity is no success measure on the lock: |grad J|^2 at the start falls from {start[0]} to "
             f"{start[1]} between 2 and 8 layers, a plateau. Episodes to a return are counted instead."]  # fmt: skip

    def plot(figure: Canvas) -> None:
        axis = figure.subplots()
        for name, found in (("covered", covered), ("lock", locks)):
            axis.loglog(list(found), [np.median(e) for e in found.values()], "o-", label=f"{name}, median")
            for h, e in found.items():
                axis.loglog([h] * len(e), e, "k.", ms=2)
        axis.set(xlabel="layers", ylabel="episodes to the goal", title="Depth; points: single seeds")
        axis.set_xticks([2, 3, 4, 5, 8], ["2", "3", "4", "5", "8"], minor=False)
        axis.minorticks_off()
        axis.legend(loc="lower right")

    return Outcome(checks, notes, plot)


def _near(name: str, found: dict[int, Floats], expected: dict[int, float], room: float) -> Check:
    """Are the medians over runs those ``expected``, within a factor ``room``? A missed goal is infinitely far."""
    medians = {h: float(np.median(e)) for h, e in found.items()}
    near = all(1 / room <= medians[h] / expected[h] <= room for h in expected)
    return Check(name, medians, f"within a factor {room:g}", expected, near)


def _slope(found: dict[int, Floats]) -> list[float]:
    """Of the medians, and its interval; inf where a median run doesn't meet its goal."""
    episodes = np.stack(list(found.values()), 1)
    if not np.isfinite(np.median(episodes, 0)).all():
        return [math.inf] * 3
    limit = MOST * TabularPPO().episodes  # stands for single runs that don't
    fit = loglog_slope(list(found), np.minimum(episodes, limit), median=True)
    return [fit.value, fit.low, fit.high]


def _episodes(world: Layered, goal: float, seeds: Sequence[int]) -> Floats:
    """Episodes [runs] until J >= goal, looked at every 5 iterations; inf: not within ``MOST`` iterations."""
    runs = ppo_tabular(world, TabularPPO(), MOST, seeds, every=5, goal=goal)
    return np.where(runs.iterations < MOST, runs.fresh, np.inf)
