"""KLPO's population quantities on a token tree, and the estimators that it guards against.

KLPO (arXiv 2610.08963) fits, by least squares on the sampler's own data, the optimality condition
A/beta = log(p/q) + KL(q||p) at every prefix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError
from stretto.objectives.interface import LossFunction
from stretto.objectives.loss import Loss
from stretto.objectives.metrics import Metrics
from stretto.tabular.token_tree.gradients import expected_gradient, row_gradients, sample_rows, with_head
from stretto.tabular.token_tree.tree import TokenTree, gibbs


def residuals(tree: TokenTree, sampler: Tensor, policy: Tensor, beta: float) -> Tensor:
    """[N,V]: what is left of KLPO's optimality condition, A - beta (ell + KL(q||p)) with ell = log(p/q); zero at the
    Gibbs policy. ``sampler`` q and ``policy`` p are log-probabilities [N,V]."""
    ell = policy - sampler
    kl = -(sampler.exp() * ell).sum(1, keepdim=True)
    return tree.advantages(sampler) - beta * (ell + kl)


def population_objective(tree: TokenTree, sampler: Tensor, policy: Tensor, beta: float) -> float:
    """KLPO's least-squares objective in exact expectation: beta/2 sum_s d(s) sum_a q(a|s) (A/beta - ell - KL)^2, d the
    sampler's visits."""
    square = (sampler.exp() * residuals(tree, sampler, policy, beta).square()).sum(1)
    return float(tree.visits(sampler) @ square) / (2 * beta)


def population_gradient(tree: TokenTree, sampler: Tensor, policy: Tensor, beta: float) -> Tensor:
    """Exact gradient [N,V] of ``population_objective`` on the policy's logits: -d(s) q(b|s) (A - beta (ell + KL))."""
    return -tree.visits(sampler)[:, None] * sampler.exp() * residuals(tree, sampler, policy, beta)


def score_covariance(tree: TokenTree, sampler: Tensor, policy: Tensor) -> Tensor:
    """d(s) Cov_q(ell, grad log p) [N,V] on the logits: the unit of the bias that ``SharedColumns`` has."""
    q = sampler.exp()
    ell = policy - sampler
    # score of token a on logit b is 1[a = b] - p_b, and the covariance with a constant is 0
    return tree.visits(sampler)[:, None] * q * (ell - (q * ell).sum(1, keepdim=True))


@dataclass(frozen=True)
class SharedColumns:
    """KLPO's sequence route with Monte-Carlo draws but without leaving the column of the score out of its residual:
    ``own``: column j is weighted by its own residual; ``mean``: by the mean over all M. Both are biased, by beta
    Cov_q(ell, score) and by 1/M of it. For comparison alone."""

    beta: float
    weights: Literal["own", "mean"] = "own"

    def __call__(
        self, batch: TokenBatch, logp: Tensor, values: Tensor | None = None, advantages: Tensor | None = None
    ) -> Loss:
        """The surrogate, of the batch's rewards."""
        behavior, drawn, rewards = batch.need("logp_behavior", "sampled_logp_behavior", "rewards")
        (current,) = batch.need("sampled_logp_current")
        mask = batch.mask[..., None]
        ell = torch.where(batch.mask, logp - behavior, 0.0).sum(1, keepdim=True)
        kl = torch.where(mask, drawn - current, 0.0).sum(1)
        d = (rewards.sum(1, keepdim=True) - self.beta * (ell + kl)).detach()
        if self.weights == "mean":
            d = d.mean(1, keepdim=True)
        score = torch.where(batch.mask, logp, 0.0).sum(1, keepdim=True) - torch.where(mask, current, 0.0).sum(1)
        total = -(d * score).mean(1).mean()
        return Loss(total, total, torch.zeros_like(total), Metrics())


@dataclass(frozen=True)
class Window:
    """At the end of one window of constant sampler: KL(Gibbs policy of that sampler || current) and expected reward."""

    distance: float
    value: float


LOST = Window(math.inf, math.nan)
"""Where a policy has become so sharp that its estimator refused to go on."""


def descend(
    tree: TokenTree, objective: LossFunction, sampler: Tensor, *, steps: list[int], lr: float, beta: float
) -> list[Window]:
    """Exact expected gradient descent against one fixed sampler, from the sampler; the state after each of
    ``steps``, ``LOST`` where the objective refuses the policy."""
    target, paths = gibbs(tree, sampler, beta), torch.arange(len(tree.reward))
    batch = with_head(tree.rows(sampler), tree, sampler, paths)
    chances = tree.chance(sampler)
    logits = sampler.clone()
    out: list[Window] = []
    for step in range(1, max(steps) + 1):
        policy = torch.log_softmax(logits, 1)
        try:
            logits -= lr * expected_gradient(objective, batch, tree, paths, policy, chances)
        except DataError:
            return [*out, *[LOST] * (len(steps) - len(out))]
        if step in steps:
            out.append(_state(tree, target, logits))
    return out


def learn(
    tree: TokenTree,
    objective: LossFunction,
    start: Tensor,
    *,
    refresh: int,
    steps: int,
    prompts: int,
    lr: float,
    beta: float,
    seed: int,
) -> list[Window]:
    """``steps`` updates of ``prompts`` single rollouts each; the sampler becomes the current policy every
    ``refresh`` steps. The state at the end of each window, ``LOST`` where the objective refuses the policy; rollouts
    are the same for every objective until policies part."""
    logits = start.clone()
    out: list[Window] = []
    sampler = target = start
    for step in range(steps):
        if step % refresh == 0:
            sampler = torch.log_softmax(logits, 1)
            target = gibbs(tree, sampler, beta)
        paths, _ = sample_rows(tree, sampler, prompts, 1, seed * 1_000_003 + step)
        batch = with_head(tree.rows(sampler, paths), tree, sampler, paths)
        try:
            _, rows = row_gradients(objective, batch, tree, paths, torch.log_softmax(logits, 1))
        except DataError:
            return [*out, *[LOST] * (steps // refresh - len(out))]
        logits -= lr * rows.mean(0)
        if (step + 1) % refresh == 0:
            out.append(_state(tree, target, logits))
    return out


def _state(tree: TokenTree, target: Tensor, logits: Tensor) -> Window:
    policy = torch.log_softmax(logits, 1)
    return Window(tree.divergence(target, policy), tree.value(policy))
