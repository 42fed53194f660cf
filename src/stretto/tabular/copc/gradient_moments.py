"""Exact mean and variance of an objective's gradient on a token tree: every trajectory enumerated, none sampled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.interface import LossFunction
from stretto.tabular.token_tree.tree import TokenTree

NOISE = 0.3
"""Standard deviation of the critic's error in the worlds of ``drifted_policies``."""


@dataclass(frozen=True)
class DriftedPolicies:
    """Tables of log-probabilities [N,V] of the behaviour and the current policy on ``tree``, and a noisy ``critic``
    [N]: values of the behaviour policy plus N(0, 0.3)."""

    tree: TokenTree
    behaviour: Tensor
    current: Tensor
    critic: Tensor


@dataclass(frozen=True)
class GradientMoments:
    """``mean`` [N,V]: expected ascent direction in the logits of one trajectory from the behaviour policy;
    ``variance``: of one trajectory's, summed over the logits; ``target`` [N,V]: sum_s d_mu(s) sum_a pi A^pi
    grad log pi, the direction without bias."""

    mean: Tensor
    variance: float
    target: Tensor

    @property
    def bias(self) -> float:
        """Relative bias |mean - target| / |target| of the expected direction; 0 for an unbiased one."""
        return float((self.mean - self.target).norm() / self.target.norm())

    def error(self, trajectories: int) -> float:
        """Mean squared error of a batch's mean direction, in units of |target|^2: bias^2 plus variance."""
        return self.bias**2 + self.variance / trajectories / float(self.target.square().sum())


def drifted_policies(vocabulary: int, depth: int, drift: float, seed: int) -> DriftedPolicies:
    """A full tree with logits N(0,1) for the behaviour policy, those plus ``drift`` N(0,1) for the current one, and
    leaf rewards N(0,1); level by level from ``default_rng(seed)``, the critic's errors from ``default_rng(seed+1)``."""
    g = np.random.default_rng(seed)
    shapes = [(vocabulary**t, vocabulary) for t in range(depth)]
    base = torch.from_numpy(np.concatenate([g.normal(size=shape) for shape in shapes]))
    direction = torch.from_numpy(np.concatenate([g.normal(size=shape) for shape in shapes]))
    tree = TokenTree.full(vocabulary, depth)
    rewards = torch.zeros_like(tree.rewards)
    rewards[-(vocabulary ** (depth - 1)) :] = torch.from_numpy(g.normal(size=shapes[-1]))
    tree = TokenTree(tree.children, rewards)
    behaviour, current = torch.log_softmax(base, 1), torch.log_softmax(base + drift * direction, 1)
    values = (behaviour.exp() * tree.q_values(behaviour)).sum(1)
    e = np.random.default_rng(seed + 1)
    noise = np.concatenate([e.normal(size=rows) for rows, _ in shapes])
    return DriftedPolicies(tree, behaviour, current, values + NOISE * torch.from_numpy(noise))


def enumerated(world: DriftedPolicies) -> tuple[TokenBatch, Tensor]:
    """Every trajectory once, as the behaviour policy recorded it and the critic valued it, and ``logp`` [P,T] of the
    current policy (a leaf: the objective's gradient arrives there)."""
    tree = world.tree
    batch = tree.rows(world.behaviour).replace(values=world.critic[tree.nodes])
    logp = world.current[tree.nodes].gather(2, tree.actions[..., None])[..., 0]
    return batch, logp.detach().requires_grad_()


def gradient_moments(world: DriftedPolicies, objective: LossFunction) -> GradientMoments:
    """Exact moments of the gradient of ``objective``, one with token-mean aggregation whose loss at a trajectory
    depends on that trajectory alone."""
    tree = world.tree
    batch, logp = enumerated(world)
    (slope,) = torch.autograd.grad(objective(batch, logp).policy, logp)
    factor = torch.where(tree.mask, -slope * int(batch.mask.sum()), 0.0)  # multiplies grad log pi, per token
    chance, pi = tree.chance(world.behaviour), world.current.exp()
    score = torch.nn.functional.one_hot(tree.actions, pi.shape[1]) - pi[tree.nodes]  # grad of the node's logits
    weighted = (chance[:, None] * factor)[..., None] * score
    mean = torch.zeros_like(pi).index_add(0, tree.nodes.flatten(), weighted.flatten(0, 1))
    # a trajectory passes a node once, so its gradient's squared norm is the sum over its tokens
    square = (factor.square() * score.square().sum(2)).sum(1)
    variance = float(chance @ square - mean.square().sum())
    target = tree.visits(world.behaviour)[:, None] * pi * tree.advantages(world.current)
    return GradientMoments(mean, variance, target)
