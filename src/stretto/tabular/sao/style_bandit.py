"""Contextual bandits whose rewarded style flips: how fast single rollouts and groups follow, at any lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from stretto.data.arrays import Floats
from stretto.data.batch import TokenBatch
from stretto.objectives.base import Objective

Baseline = Literal["critic", "running-mean", "own"]
STYLES, CONTENTS = 2, 2


@dataclass(frozen=True)
class StyleBandit:
    """One bandit a seed (S of them): ``contexts`` with ``features`` each (the first is 1, the others N(0,1)); an
    action is a style and a content.

    Reward: 0 in the wrong style, 1/2 in the right one, 1 with the content that suits the context, too. The rewarded
    style flips every ``flip`` updates. The best policy has reward 1, the uniform one 3/8.
    """

    seeds: Sequence[int]
    contexts: int = 256
    features: int = 8
    flip: int = 100
    phi: Tensor = field(init=False, repr=False)
    suits: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        phi = np.ones((len(self.seeds), self.contexts, self.features))
        suits = np.empty(phi.shape[:2], np.int64)
        for i, seed in enumerate(self.seeds):
            g = np.random.default_rng(seed)
            phi[i, :, 1:] = g.normal(size=(self.contexts, self.features - 1))
            suits[i] = phi[i] @ g.normal(size=self.features) > 0
        object.__setattr__(self, "phi", torch.from_numpy(phi))
        object.__setattr__(self, "suits", torch.from_numpy(suits))

    def rewards(self, update: int) -> Tensor:
        """Reward [S,C,K] of each action (style x content, content fastest) in each context at update number
        ``update``."""
        style = torch.nn.functional.one_hot(torch.tensor(update // self.flip % STYLES), STYLES).double()
        content = torch.nn.functional.one_hot(self.suits, CONTENTS).double()
        return (style[:, None] * (0.5 + 0.5 * content[:, :, None, :])).flatten(2)


@dataclass(frozen=True)
class Followed:
    """``j`` [S,updates]: exact expected reward before each update. ``beyond``: trained tokens whose ratio lies (below,
    above) the limits asked for and whose update points back to 1 (A > 0 below, A < 0 above); ``moved``: how many of
    them have a gradient."""

    j: Floats
    beyond: tuple[int, int]
    moved: tuple[int, int]

    def recovery(self, flip: int, level: float) -> Floats:
        """Mean over the flips [S] of the updates until ``j`` reaches ``level`` again; ``flip`` where it doesn't before
        the next one."""
        parts = self.j.reshape(len(self.j), -1, flip)[:, 1:] >= level
        return np.asarray(np.where(parts.any(2), parts.argmax(2), flip).mean(1))


def follow(
    world: StyleBandit,
    objective: Objective,
    *,
    baseline: Baseline,
    group: int = 1,
    rollouts: int = 64,
    updates: int = 600,
    lag: int = 0,
    lr: float = 1.0,
    critic_lr: float = 0.1,
    critic_updates: int = 2,
    decay: float = 0.02,
    limits: tuple[float, float] = (0.5, 2.0),
) -> Followed:
    """Train each seed on ``rollouts`` an update, in groups of ``group`` a context, sampled by the policy of ``lag``
    updates before. Policy and critic are linear in the features and learn by plain gradient steps; ``decay``: the share
    of the policy's weights that is lost each update, so that it never gives a style up for good.

    ``baseline``: a ``critic`` with ``critic_updates`` steps of the objective's critic loss an update, the
    ``running-mean`` of the last 128 rewards, or the objective's ``own``. ``limits``: ratios outside are counted in
    ``beyond``. Contexts and noise depend on the seed, not on the objective, whose loss must be a mean over rows.
    """
    seeds = len(world.seeds)
    draws = [np.random.default_rng((seed, 2)) for seed in world.seeds]
    weights = torch.zeros(seeds, world.features, STYLES * CONTENTS, dtype=torch.float64, requires_grad=True)
    critic = torch.zeros(seeds, world.features, dtype=torch.float64, requires_grad=True)
    versions: deque[Tensor] = deque(maxlen=lag + 1)
    recent: deque[Tensor] = deque(maxlen=max(128 // rollouts, 1))
    at = torch.arange(seeds)[:, None]
    j, beyond, moved = np.empty((seeds, updates)), np.zeros(2, np.int64), np.zeros(2, np.int64)
    for update in range(updates):
        versions.append(weights.detach().clone())
        reward = world.rewards(update)
        j[:, update] = (torch.softmax(world.phi @ versions[-1], 2) * reward).sum(2).mean(1).numpy()
        context = np.stack([g.integers(0, world.contexts, rollouts // group).repeat(group) for g in draws])
        u = torch.from_numpy(np.stack([g.random(rollouts) for g in draws]))[..., None]
        phi = world.phi[at, torch.from_numpy(context)]
        there = torch.log_softmax(phi @ versions[0], 2)
        action = (u >= there.exp().cumsum(2)[..., :-1]).sum(2, keepdim=True)
        earned = reward[at, torch.from_numpy(context)].gather(2, action)[..., 0]
        behavior = _column(there.gather(2, action))
        batch = TokenBatch(
            mask=torch.ones(seeds * rollouts, 1, dtype=torch.bool),
            logp_behavior=behavior,
            rewards=_column(earned),
            group=torch.arange(seeds * rollouts) // group,
            values=_column(_valued(phi, critic).detach()) if baseline == "critic" else None,
            version=update,
        )
        if baseline == "running-mean":
            mean = torch.stack(list(recent)).mean(0) if recent else torch.zeros(seeds, 1, dtype=torch.float64)
            advantages = _column(earned - mean)
        else:
            advantages = objective.advantages(batch)
        recent.append(earned.mean(1, keepdim=True))
        logp = _column(torch.log_softmax(phi @ weights, 2).gather(2, action))
        loss = objective(batch, logp, advantages=advantages).policy * seeds  # each seed has a batch of its own
        (slope,) = torch.autograd.grad(loss, logp, retain_graph=True)
        r = (logp - behavior).exp()
        far = torch.stack([(r < limits[0]) & (advantages > 0), (r > limits[1]) & (advantages < 0)])
        beyond += far.sum((1, 2)).numpy()
        moved += (far & (slope != 0)).sum((1, 2)).numpy()
        (gradient,) = torch.autograd.grad(logp, weights, slope)
        weights = ((1 - decay) * weights - lr * gradient).detach().requires_grad_()
        for _ in range(critic_updates if baseline == "critic" else 0):
            fit = objective(batch, logp.detach(), _column(_valued(phi, critic)), advantages).critic * seeds
            (gradient,) = torch.autograd.grad(fit, critic)
            critic = (critic - critic_lr * gradient).detach().requires_grad_()
    return Followed(j, (int(beyond[0]), int(beyond[1])), (int(moved[0]), int(moved[1])))


def _valued(phi: Tensor, critic: Tensor) -> Tensor:
    return (phi * critic[:, None]).sum(2)


def _column(x: Tensor) -> Tensor:
    return x.reshape(-1, 1)
