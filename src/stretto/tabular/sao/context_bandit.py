"""Contextual bandits: the variance of grouped rollouts, and what a group's mean as baseline does to the gradient."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch

from stretto.data.arrays import Floats, Ints
from stretto.data.batch import TokenBatch
from stretto.objectives.interface import LossFunction


@dataclass(frozen=True)
class ContextBandit:
    """``policy`` [C,K]: softmax of N(0,1) logits; ``reward`` [C,K]: N(0,1) plus 2 N(0,1) per context. All contexts
    share one vector of K logit parameters, in which gradients are taken."""

    contexts: int = 4000
    actions: int = 5
    seed: int = 0
    policy: Floats = field(init=False, repr=False)
    reward: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        g = np.random.default_rng(self.seed)
        e = np.exp(g.normal(size=(self.contexts, self.actions)))
        object.__setattr__(self, "policy", e / e.sum(1, keepdims=True))
        shape = (self.contexts, self.actions)
        object.__setattr__(self, "reward", g.normal(size=shape) + 2 * g.normal(size=(self.contexts, 1)))

    def advantages(self) -> Floats:
        """Advantages [C,K] with the perfect baseline: reward minus the context's expected reward."""
        return self.reward - (self.policy * self.reward).sum(1, keepdims=True)

    def law(self, rollouts: int, group: int) -> float:
        """Variance (summed over parameters) of the mean gradient of ``rollouts`` in groups of ``group`` a context:
        (within + group between) / rollouts, with the perfect baseline."""
        score = np.eye(self.actions) - self.policy[:, None, :]
        each = self.advantages()[:, :, None] * score
        mean = (self.policy[:, :, None] * each).sum(1)
        within = (self.policy[:, :, None] * each**2).sum(1) - mean**2
        return float((within.mean(0) + group * mean.var(0)).sum() / rollouts)

    def measured(
        self, objective: LossFunction, rollouts: int, group: int, repetitions: int, g: np.random.Generator
    ) -> float:
        """Variance (summed over parameters) of the mean gradient of ``rollouts`` in groups of ``group``, as ``law``
        gives it, but measured: of ``objective`` (token-mean aggregation) over ``repetitions`` batches sampled by the
        policy itself."""
        context = g.integers(0, self.contexts, (repetitions, rollouts // group)).repeat(group, 1).ravel()
        cumulated = self.policy.cumsum(1)[:, :-1]
        action = (g.random(len(context))[:, None] >= cumulated[context]).sum(1)
        factor = gradient_factors(
            objective, self.policy[context, action], advantages=self.advantages()[context, action]
        )
        score = np.eye(self.actions)[action] - self.policy[context]
        mean = (factor[:, None] * score).reshape(repetitions, rollouts, -1).mean(1)
        return float(mean.var(0, ddof=1).sum())


def gradient_factors(
    objective: LossFunction,
    chance: Floats,
    *,
    advantages: Floats | None = None,
    rewards: Floats | None = None,
    group: Ints | None = None,
) -> Floats:
    """What ``objective`` multiplies grad log pi by [B], for B one-token rows sampled with ``chance`` [B] from the
    current policy. Give it ``advantages`` [B], or ``rewards`` and ``group`` [B] for the objective's own."""
    logp = torch.from_numpy(np.log(chance))[:, None].requires_grad_()
    batch = TokenBatch(
        mask=torch.ones(logp.shape, dtype=torch.bool),
        logp_behavior=logp.detach(),
        rewards=None if rewards is None else torch.from_numpy(rewards)[:, None],
        group=None if group is None else torch.from_numpy(group),
    )
    loss = objective(batch, logp, advantages=None if advantages is None else torch.from_numpy(advantages)).policy
    return np.asarray(-torch.autograd.grad(loss, logp)[0][:, 0].numpy() * len(chance))


def group_scale(objective: LossFunction, policy: Floats, reward: Floats, group: int) -> float:
    """Expected gradient of ``objective`` (mean over rows; its own group baseline) over all K^``group`` groups of one
    context, in units of the true gradient (least squares; ``policy``, ``reward`` [K])."""
    tuples = np.array(list(itertools.product(range(len(policy)), repeat=group)))
    chance = policy[tuples].prod(1)
    flat, index = tuples.ravel(), np.repeat(np.arange(len(tuples)), group)
    factor = gradient_factors(objective, policy[flat], rewards=reward[flat], group=index)
    score = np.eye(len(policy))[flat] - policy
    mean = ((chance[index] * factor)[:, None] * score).sum(0) / group
    true = policy * (reward - policy @ reward)
    return float(mean @ true / (true @ true))
