"""Closed-loop PPO, one update: is it the exact mean of its parts, the gradient's, the critic's, the clip's?

Rates don't show whether there is a clip or a critic (without them they hold, too), one update at a known old pair does.
"""

from __future__ import annotations

import math

import numpy as np

from stretto.data.arrays import Floats
from stretto.papers.base import Check, Settings
from stretto.tabular.delay import Delays
from stretto.tabular.ppo import Lateness, Layered, TabularPPO, ppo_tabular
from stretto.tabular.ppo.coupling import clipped_share, split_update

UPDATE = TabularPPO(episodes=64, epochs=1, clip=0.1, lam=0.5, actor_step=8, actor_power=0)
"""Large steps, so that the second update's ratios are far from 1 and a third of its samples clipped; short traces, so
that the critic matters in the mean [inferred]."""
MOST = 5.0
"""Standard errors: beyond it by chance once in 10^5 experiments."""


def update_checks(world: Layered, settings: Settings) -> list[Check]:
    """The second update of runs whose pair is one iteration late: episodes and advantages are of the first pair, a
    uniform policy and a wrong critic, the same in all runs; theta is where the first update left it."""
    seeds = settings.range(512, 256)
    critic = np.random.default_rng(0).normal(size=world.rewards.shape[:2])
    late = Lateness(Delays("constant", 1))
    first, second = (ppo_tabular(world, UPDATE, n, seeds, late, critic=critic) for n in (1, 2))
    moved = (second.theta - first.theta) / UPDATE.actor_step
    old, clip, lam = np.zeros(world.rewards.shape), UPDATE.clip, UPDATE.lam
    splits = [split_update(world, theta, old, critic, lam, clip, UPDATE.episodes) for theta in first.theta]
    off = moved - [s.gradient + s.stale + s.critic + s.clip for s in splits]
    parts = {
        "gradient": np.stack([s.gradient + s.stale for s in splits]),
        "critic": np.stack([s.critic for s in splits]),
        "clip": np.stack([s.clip for s in splits]),
    }
    checks = []
    for name, part in parts.items():
        seen, error = _coefficient(off, part)
        checks.append(Check(f"one update: how much of the {name}'s exact part is seen, standard error", [seen, error],
                            f"1 to {MOST:g} standard errors, themselves <= .1", 1.0,
                            abs(seen - 1) <= MOST * error and error <= 0.1))  # fmt: skip
    share = 2 * second.clipped[:, 0]  # of both iterations' samples, of which the first's have ratio 1
    exact = np.array([clipped_share(world, theta, old, critic, lam, clip) for theta in first.theta])
    error = float((share - exact).std(ddof=1)) / math.sqrt(len(exact))
    checks.append(Check("one update: share of samples that the clip silences", float(share.mean()),
                        f"exact to {MOST:g} standard errors ({error:.2g})", float(exact.mean()),
                        bool(abs((share - exact).mean()) <= MOST * error)))  # fmt: skip
    return checks


def _coefficient(off: Floats, part: Floats) -> tuple[float, float]:
    """By which factor a ``part`` [runs, H, S, A] of the mean update is in what was seen, 1 + sum <off, part> / sum
    |part|^2, and its standard error over runs; ``off``: what was seen less the exact mean, whose mean is zero."""
    along, size = (off * part).sum((1, 2, 3)), float((part**2).sum())
    return 1 + float(along.sum()) / size, float(along.std(ddof=1)) * math.sqrt(len(along)) / size
