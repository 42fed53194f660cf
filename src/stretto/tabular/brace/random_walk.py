"""A random walk with two slightly different policies: learn a critic of one from the other's trajectories."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stretto.data.arrays import Bools, Floats, Ints
from stretto.data.batch import TokenBatch

Estimator = Callable[[TokenBatch, Tensor], Tensor]
"""Critic's targets [B,T] of a batch with values and rewards, and the current policy's log-probabilities [B,T]."""


@dataclass(frozen=True)
class RandomWalk:
    """``steps`` T steps on 0..``top`` from the middle; action 1 moves up, 0 down, both held at the ends; the only
    reward, at the end, is the place reached over ``top``. ``behaviour``, ``current`` [T,top+1]: probability of
    moving up, sigmoid(z) and sigmoid(z + dz), z = 0.3 N(0,1), dz = ``scale`` N(0,1) + ``shift``."""

    steps: int
    top: int
    scale: float
    shift: float
    seed: int = 0
    behaviour: Floats = field(init=False, repr=False)
    current: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        g = np.random.default_rng(self.seed)
        z = 0.3 * g.normal(size=(self.steps, self.top + 1))
        dz = self.scale * g.normal(size=z.shape) + self.shift
        object.__setattr__(self, "behaviour", 1 / (1 + np.exp(-z)))
        object.__setattr__(self, "current", 1 / (1 + np.exp(-z - dz)))

    def values(self, policy: Floats) -> Floats:
        """Exact expected reward [T,top+1] from each place and time under ``policy`` [T,top+1]."""
        up, down = self._moves()
        v = np.empty((self.steps + 1, self.top + 1))
        v[-1] = np.arange(self.top + 1) / self.top
        for t in range(self.steps - 1, -1, -1):
            v[t] = policy[t] * v[t + 1][up] + (1 - policy[t]) * v[t + 1][down]
        return v[:-1]

    def visits(self) -> Floats:
        """Probability [T,top+1] that the behaviour policy is at each place at each time."""
        up, down = self._moves()
        d = np.zeros((self.steps, self.top + 1))
        d[0, self.top // 2] = 1
        for t in range(self.steps - 1):
            np.add.at(d[t + 1], up, d[t] * self.behaviour[t])
            np.add.at(d[t + 1], down, d[t] * (1 - self.behaviour[t]))
        return d

    def sample(self, trajectories: int, g: np.random.Generator) -> tuple[Ints, TokenBatch, Tensor]:
        """Places [B,T], the batch (without values) and ``logp`` [B,T] of the current policy."""
        up, down = self._moves()
        u = g.random((trajectories, self.steps))
        places = np.empty((trajectories, self.steps), np.int64)
        at = np.full(trajectories, self.top // 2)
        for t in range(self.steps):
            places[:, t] = at
            at = np.where(u[:, t] < self.behaviour[t, at], up[at], down[at])
        times = np.arange(self.steps)
        moved = u < self.behaviour[times, places]
        rewards = np.zeros(u.shape)
        rewards[:, -1] = at / self.top
        batch = TokenBatch(
            mask=torch.ones(u.shape, dtype=torch.bool),
            logp_behavior=_logp(self.behaviour[times, places], moved),
            rewards=torch.from_numpy(rewards),
        )
        return places, batch, _logp(self.current[times, places], moved)

    def rmse(self, critic: Floats) -> Floats:
        """[4]: root mean squared error of ``critic`` [T,top+1] to the current policy's values, weighted by the
        behaviour policy's visits: over all times, and over the first, middle and last third of them."""
        square = self.visits() * (critic - self.values(self.current)) ** 2
        third = self.steps // 3
        parts = [square, square[:third], square[third : 2 * third], square[2 * third :]]
        return np.array([np.sqrt(part.sum() / len(part)) for part in parts])

    def _moves(self) -> tuple[Ints, Ints]:
        place = np.arange(self.top + 1)
        return np.minimum(place + 1, self.top), np.maximum(place - 1, 0)


def learn(
    walk: RandomWalk,
    estimators: Mapping[str, Estimator],
    rounds: int,
    trajectories: int,
    step: float,
    marks: Collection[int],
    seed: int = 0,
) -> dict[int, dict[str, Floats]]:
    """Critic tables [T,top+1] of each estimator after the rounds in ``marks``.

    A round: ``trajectories`` new ones, the same for all estimators; then V += step min(1, count/20) (mean G - V) at
    each place and time that they visited ``count`` times. V starts at 1/2. ``seed``: of the trajectories.
    """
    g = np.random.default_rng((walk.seed, 1, seed))
    tables = {name: np.full((walk.steps, walk.top + 1), 0.5) for name in estimators}
    kept: dict[int, dict[str, Floats]] = {}
    times = np.arange(walk.steps)
    for done in range(1, rounds + 1):
        places, batch, logp = walk.sample(trajectories, g)
        cell = times * (walk.top + 1) + places
        count = np.bincount(cell.ravel(), minlength=walk.steps * (walk.top + 1))
        rate = step * np.minimum(1, count / 20) / np.maximum(count, 1)
        for name, estimator in estimators.items():
            v = tables[name]
            values = torch.from_numpy(v[times, places])
            error = (estimator(batch.replace(values=values), logp) - values).numpy()
            v += (rate * np.bincount(cell.ravel(), error.ravel(), minlength=len(count))).reshape(v.shape)
        if done in marks:
            kept[done] = {name: table.copy() for name, table in tables.items()}
    return kept


def window(estimator: Estimator, k: int, c_bar: float) -> Estimator:
    """``estimator`` (V-trace with traces min(c_bar, w), no discount) cut to ``k`` tokens, then the critic's value: what
    the targets take from token s + k on, weighted by the window's traces, is taken out again."""

    def cut(batch: TokenBatch, logp: Tensor) -> Tensor:
        behavior, values = batch.need("logp_behavior", "values")
        targets = estimator(batch, logp)
        traces = (logp - behavior).clamp(max=float(np.log(c_bar))).cumsum(1)
        before = torch.nn.functional.pad(traces, (1, 0))
        product = (before[:, k:-1] - before[:, : -1 - k]).exp()
        beyond = product * (targets - values)[:, k:]
        return targets - torch.nn.functional.pad(beyond, (0, min(k, targets.shape[1])))

    return cut


def reward_weight(estimator: Estimator, batch: TokenBatch, logp: Tensor) -> Tensor:
    """By how much each target [B,T] moves when the row's last reward grows by one (targets are linear in it): 0 where
    the reward doesn't reach a token."""
    (rewards,) = batch.need("rewards")
    more = rewards.clone()
    more[:, -1] += 1
    return estimator(batch.replace(rewards=more), logp) - estimator(batch, logp)


def _logp(up: Floats, moved: Bools) -> Tensor:
    return torch.from_numpy(np.log(np.where(moved, up, 1 - up)))
