"""KLPO's estimators (arXiv 2610.08963) in exact expectation on a tree of two decisions, and their variance by draws.

The small tree: q = [[.3, .7], [.6, .4]]; token 0 at the root ends with 0.2, token 1 leads to node 1, which ends with
1.1 or -0.5; the current policy has logits [[.5, -.2], [-.6, .9]].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stretto.objectives.interface import LossFunction
from stretto.tabular.klpo.population import population_gradient
from stretto.tabular.token_tree.gradients import (
    all_draws,
    expected_gradient,
    row_gradients,
    sample_rows,
    with_draws,
    with_head,
)
from stretto.tabular.token_tree.tree import TokenTree

SMALL = TokenTree(torch.tensor([[-1, 1], [-1, -1]]), torch.tensor([[0.2, 0.0], [1.1, -0.5]], dtype=torch.float64))
SAMPLER = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64).log()
POLICY = torch.log_softmax(torch.tensor([[0.5, -0.2], [-0.6, 0.9]], dtype=torch.float64), 1)


def small_gradient(objective: LossFunction, *, head: bool) -> Tensor:
    """Expected gradient [2,2] on the small tree's logits, with the whole vocabulary recorded if ``head``."""
    paths = torch.arange(len(SMALL.reward))
    batch = SMALL.rows(SAMPLER)
    batch = with_head(batch, SMALL, SAMPLER, paths) if head else batch
    return expected_gradient(objective, batch, SMALL, paths, POLICY, SMALL.chance(SAMPLER))


def small_gradient_over_draws(objective: LossFunction, draws: int) -> Tensor:
    """Expected gradient [2,2] on the small tree's logits of an objective with ``draws`` independent tokens at each
    position, over every combination of them."""
    paths, tokens, chances = all_draws(SMALL, SAMPLER, draws)
    batch = with_draws(SMALL.rows(SAMPLER, paths), SMALL, SAMPLER, paths, tokens)
    return expected_gradient(objective, batch, SMALL, paths, POLICY, chances)


def variance(objective: LossFunction, tree: TokenTree, sampler: Tensor, policy: Tensor, beta: float) -> float:
    """E |g - E g|^2 of one row's gradient with the whole vocabulary recorded, exactly."""
    paths = torch.arange(len(tree.reward))
    batch = with_head(tree.rows(sampler), tree, sampler, paths)
    _, rows = row_gradients(objective, batch, tree, paths, policy)
    exact = population_gradient(tree, sampler, policy, beta)
    return float(tree.chance(sampler) @ (rows - exact).square().sum((1, 2)))


def variances_by_draws(
    objective: LossFunction,
    tree: TokenTree,
    sampler: Tensor,
    policy: Tensor,
    beta: float,
    draws: Sequence[int],
    seed: int,
    rows: int = 60_000,
) -> list[float]:
    """E |g - E g|^2 of one row's gradient for each number of draws, over ``rows`` sampled rows, E g exact."""
    exact = population_gradient(tree, sampler, policy, beta)
    found = []
    for m in draws:
        paths, tokens = sample_rows(tree, sampler, rows, m, seed * 1_000_003 + m)
        batch = with_draws(tree.rows(sampler, paths), tree, sampler, paths, tokens)
        _, gradients = row_gradients(objective, batch, tree, paths, policy)
        found.append(float((gradients - exact).square().sum((1, 2)).mean()))
    return found
