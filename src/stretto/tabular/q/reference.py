"""The same Q-learning in plain Python: what the compiled loops must do, step for step, bit for bit."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from stretto.data.arrays import Floats
from stretto.tabular import counter
from stretto.tabular.arguments import number
from stretto.tabular.mdp import MDP
from stretto.tabular.q.corruption import Corruption
from stretto.tabular.q.learning import Rule, trajectories
from stretto.tabular.sampling import alias_sample


def plain_q_learning(
    mdp: MDP,
    seed: int,
    rule: Rule,
    corruption: Corruption,
    *,
    epochs: int,
    batch: int,
    noise: float = 0.0,
    behaviour: ArrayLike | None = None,
) -> Floats:
    """Q tables [epochs, S, A] of one seed's run after each epoch; arguments as those of ``q_learning``."""
    number("plain_q_learning", "epochs", epochs, 1, whole=True)
    number("plain_q_learning", "batch", batch, 1, whole=True)
    number("plain_q_learning", "noise", noise, 0)
    world = trajectories(mdp, behaviour, [seed])
    move, hit, fake = (counter.uniforms(world.keys[0, k], epochs * batch) for k in (0, 2, 3))
    wiggle = noise * counter.normals(world.keys[0, 1], epochs * batch) if noise > 0 else np.zeros(epochs * batch)
    trims = rule.trims(corruption.share, mdp.states, mdp.actions).reshape(mdp.states, mdp.actions)
    q, state, out = np.zeros((mdp.states, mdp.actions)), int(world.starts[0]), []
    for epoch in range(epochs):
        targets: dict[tuple[int, int], list[float]] = {}
        for t in range(epoch * batch, (epoch + 1) * batch):
            outcome = int(alias_sample(world.columns, world.bits, state, move[t]))
            action, after = outcome >> world.shift, outcome % (1 << world.shift)
            seen, reward, follows = state, mdp.rewards[state, action] + wiggle[t], after
            if hit[t] < corruption.share:
                reward = -corruption.magnitude
                follows = 0 if corruption.states in ("next", "both") else after
                seen = int(fake[t] * mdp.states) if corruption.states == "both" else state
            y = reward + mdp.gamma * q[follows].max()
            if rule.method == "vanilla":
                q[seen, action] += rule.size * (y - q[seen, action])
            else:
                targets.setdefault((seen, action), []).append(float(y))
            state = after
        for pair, sample in targets.items():
            if len(sample) >= rule.fewest:
                q[pair] = (1 - rule.size) * q[pair] + rule.size * plain_estimate(sample, rule, trims[pair])
        out.append(q.copy())
    return np.array(out)


def plain_estimate(sample: list[float], rule: Rule, trim: float) -> float:
    """What ``rule`` makes of ``sample``, at least one number: its mean, median of means or trimmed mean."""
    n = len(sample)
    if rule.method == "median_of_means" and n >= rule.block:
        blocks = [_mean(sample[i : i + rule.block]) for i in range(0, n - rule.block + 1, rule.block)]
        blocks.sort()
        return 0.5 * (blocks[(len(blocks) - 1) // 2] + blocks[len(blocks) // 2])
    drop = min(math.ceil(trim * n * (1 - 1e-12)), (n - 1) // 2)
    return _mean(sorted(sample)[drop : n - drop] if drop else sample)


def _mean(sample: list[float]) -> float:
    total = 0.0
    for x in sample:  # one after the other, as compiled: sum() of newer Pythons keeps more digits
        total += x
    return total / len(sample)
