"""Multi-step tasks that end when enough steps were productive: an agent that rambles fails late, one that doesn't wins.

Each step is verbose with probability sigmoid(z), else concise; it is productive with probability h, times 1.8 if
concise. An episode succeeds after ``needed`` productive steps and fails at ``horizon``. h ~ U(.15, .35) per prompt.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from stretto.data.arrays import Bools, Floats, Ints
from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives.asyncwebrl import AsyncWebRL


@dataclass(frozen=True)
class VerbosityTask:
    """``horizon`` T_max steps at most, ``needed`` productive steps for success; ``bonus`` of concise steps; ``easy``
    and ``hard``: the ends of the range of h."""

    horizon: int = 15
    needed: int = 4
    bonus: float = 1.8
    hard: float = 0.15
    easy: float = 0.35


@dataclass(frozen=True)
class Episodes:
    """``verbose`` [E, horizon] bool, ``length`` [E] steps, ``success`` [E] bool, ``group`` [E] prompts."""

    verbose: Bools
    length: Ints
    success: Bools
    group: Ints


def roll(task: VerbosityTask, z: float, rng: np.random.Generator, prompts: int = 8, group: int = 8) -> Episodes:
    """``group`` episodes on each of ``prompts`` fresh prompts with verbosity ``z``."""
    h = np.repeat(rng.uniform(task.hard, task.easy, prompts), group)
    verbose = rng.random((len(h), task.horizon)) < 1 / (1 + math.exp(-z))
    chance = np.where(verbose, h[:, None], task.bonus * h[:, None])
    done = (rng.random(chance.shape) < chance).cumsum(1) >= task.needed
    success = done[:, -1]
    length = np.where(success, done.argmax(1) + 1, task.horizon)
    return Episodes(verbose, length, success, np.repeat(np.arange(prompts), group))


def rows(data: list[Episodes], z: Tensor) -> tuple[TokenBatch, Tensor, Tensor]:
    """(batch with a row a step, log-probabilities [rows, 1], run of each row) of several independent runs, the i-th of
    them with verbosity ``z[i]``. The data is fresh: the proximal policy and the behaviour are ``z`` itself."""
    count = len(data[0].length)
    verbose, length, success = (np.concatenate([getattr(d, name) for d in data])
                                for name in ("verbose", "length", "success"))  # fmt: skip
    group = np.concatenate([d.group + i * count for i, d in enumerate(data)])
    episode, at = np.nonzero(np.arange(verbose.shape[1]) < length[:, None])
    run = torch.from_numpy(episode // count)
    sign = torch.from_numpy(np.where(verbose[episode, at], 1.0, -1.0))
    logp = torch.nn.functional.logsigmoid(sign * z[run])[:, None]
    rewards = np.where(at == length[episode] - 1, success[episode], 0.0)
    batch = TokenBatch(
        mask=torch.ones(logp.shape, dtype=torch.bool),
        logp_behavior=logp.detach(),
        logp_proximal=logp.detach(),
        rewards=torch.from_numpy(rewards)[:, None],
        group=torch.from_numpy(group[episode]),
        trajectory=torch.from_numpy(episode),
    )
    return batch, logp, run


@dataclass(frozen=True)
class TrainingCurve:
    """One training run: ``verbosity`` P(verbose) before each update and at the end [updates + 1]; ``length`` mean
    steps per episode in each update's data [updates]."""

    verbosity: Floats
    length: Floats

    def updates_until(self, level: float) -> float:
        """Updates done when the probability of a verbose step first was below ``level``; NaN if it never was."""
        below = self.verbosity < level
        return float(below.argmax()) if below.any() else math.nan


def train(
    task: VerbosityTask,
    objective: AsyncWebRL,
    seeds: Iterable[int],
    matched: bool = False,
    updates: int = 400,
    rate: float = 1.0,
    start: float = 2.0,
) -> list[TrainingCurve]:
    """A run per seed: gradient steps of size ``rate`` on its z from ``start``, with ``objective``, an ``asyncwebrl``
    that sums over trajectories. The runs are independent; only their arithmetic goes in one batch.

    ``matched``: the constant normaliser is the mean |tau| of the run's batch, so that the size of a step is that of
    1/|tau| and only the shape differs. ``ConfigError`` on an objective that can't be used so.
    """
    if objective.aggregation != "trajectory-sum" or (matched and objective.normaliser != "const"):
        raise ConfigError("train: needs aggregation = 'trajectory-sum', and normaliser = 'const' where matched")
    rngs = [np.random.default_rng(seed) for seed in seeds]
    z = torch.full((len(rngs),), start, dtype=torch.float64, requires_grad=True)
    verbosity, length = [z.detach().sigmoid().numpy()], []
    for _ in range(updates):
        data = [roll(task, value, rng) for value, rng in zip(z.tolist(), rngs, strict=True)]
        batch, logp, run = rows(data, z)
        steps = torch.tensor([d.length.mean() for d in data])
        advantages = objective.advantages(batch)
        if matched:
            advantages = advantages * (objective.k / steps[run])[:, None]
        loss = objective(batch, logp, advantages=advantages).total * len(rngs)  # each run averages over its own
        (slope,) = torch.autograd.grad(loss, z)
        with torch.no_grad():
            z -= rate * slope
        verbosity.append(z.detach().sigmoid().numpy())
        length.append(steps.numpy())
    columns = zip(np.array(verbosity).T, np.array(length).T, strict=True)
    return [TrainingCurve(verbose, steps) for verbose, steps in columns]


def expected(task: VerbosityTask, verbosity: float, points: int = 64) -> tuple[float, float]:
    """Exact (steps per episode, success) at P(verbose) = ``verbosity``, averaged over h by Gauss-Legendre."""
    nodes, weights = _gauss(points)
    h = task.hard + (task.easy - task.hard) * (nodes + 1) / 2
    chance = h * (verbosity + task.bonus * (1 - verbosity))
    steps, success = _expected(chance, task.horizon, task.needed)
    return float(weights @ steps / 2), float(weights @ success / 2)


@functools.cache
def _gauss(points: int) -> tuple[Floats, Floats]:
    nodes, weights = np.polynomial.legendre.leggauss(points)
    return nodes, weights


@njit(cache=True)
def _expected(chance: Floats, horizon: int, needed: int) -> tuple[Floats, Floats]:
    steps = np.zeros(len(chance))
    success = np.zeros(len(chance))
    for i in range(len(chance)):
        alive = np.zeros(needed)
        alive[0] = 1.0
        for _ in range(horizon):
            steps[i] += alive.sum()
            success[i] += alive[-1] * chance[i]
            for m in range(needed - 1, 0, -1):
                alive[m] = alive[m] * (1 - chance[i]) + alive[m - 1] * chance[i]
            alive[0] *= 1 - chance[i]
    return steps, success
