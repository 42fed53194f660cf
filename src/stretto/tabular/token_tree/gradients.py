"""From an objective to gradients on the logits of a token tree: per row, in expectation, over all draws.

The objective is called once on all rows; as it is a mean over rows, its derivative by one row's log-probabilities,
times the number of rows, is that row's own gradient. Weighted by the rows' chances it is the exact expectation.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives.interface import LossFunction
from stretto.objectives.loss import Loss
from stretto.tabular.token_tree.tree import TokenTree


def with_head(batch: TokenBatch, tree: TokenTree, sampler: Tensor, paths: Tensor, k: int | None = None) -> TokenBatch:
    """``batch`` with the sampler's ``k`` likeliest tokens at each position (default: the whole vocabulary)."""
    there = sampler[tree.nodes[paths]]
    if k is None:
        tokens = torch.arange(sampler.shape[1]).expand_as(there)
    else:
        tokens = there.topk(k, dim=2).indices
    return batch.replace(top_tokens=tokens, top_logp_behavior=there.gather(2, tokens))


def with_draws(batch: TokenBatch, tree: TokenTree, sampler: Tensor, paths: Tensor, tokens: Tensor) -> TokenBatch:
    """``batch`` with these ``tokens`` [B,T,M], sampled independently at each position, and the sampler's
    log-probabilities of them."""
    return batch.replace(sampled_tokens=tokens, sampled_logp_behavior=sampler[tree.nodes[paths]].gather(2, tokens))


def sample_rows(tree: TokenTree, sampler: Tensor, rows: int, draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Paths [B] and, at each of their positions, ``draws`` tokens [B,T,M], all from the sampler and independent."""
    g = torch.Generator().manual_seed(seed)
    paths = torch.multinomial(tree.chance(sampler), rows, replacement=True, generator=g)
    table = sampler[tree.nodes[paths].flatten()].exp()
    tokens = torch.multinomial(table, draws, replacement=True, generator=g)
    return paths, tokens.view(rows, -1, draws)


def all_draws(tree: TokenTree, sampler: Tensor, draws: int) -> tuple[Tensor, Tensor, Tensor]:
    """Every path with every combination of draws: (paths [n], tokens [n,T,M], chances [n], which sum to 1)."""
    count, width = tree.nodes.shape
    combinations = torch.tensor(list(itertools.product(range(sampler.shape[1]), repeat=width * draws)))
    paths = torch.arange(count).repeat_interleave(len(combinations))
    tokens = combinations.view(-1, width, draws).repeat(count, 1, 1)
    drawn = sampler[tree.nodes[paths]].gather(2, tokens).sum((1, 2)).exp()
    return paths, tokens, tree.chance(sampler)[paths] * drawn


def row_gradients(
    objective: LossFunction, batch: TokenBatch, tree: TokenTree, paths: Tensor, policy: Tensor
) -> tuple[Loss, Tensor]:
    """(Loss, gradients [B,N,V] of each row's own loss on the logits) at the policy of log-probabilities ``policy``
    [N,V]. The current log-probabilities of recorded draws and heads are in the batch that ``objective`` gets."""
    there = policy[tree.nodes[paths]]
    assert batch.tokens is not None
    picks = {
        "logp": batch.tokens[..., None],
        "sampled_logp_current": batch.sampled_tokens,
        "top_logp_current": batch.top_tokens,
    }
    taken = {name: at for name, at in picks.items() if at is not None}
    leaves = {name: there.gather(2, at).requires_grad_() for name, at in taken.items()}
    current = {name: x for name, x in leaves.items() if name != "logp"}
    loss = objective(batch.replace(**current), leaves["logp"][..., 0])
    grads = torch.autograd.grad(loss.total, list(leaves.values()), allow_unused=True)
    on_logp = torch.zeros_like(there)
    for at, grad in zip(taken.values(), grads, strict=True):
        if grad is not None:
            on_logp.scatter_add_(2, at, grad * batch.rows)
    nodes = tree.nodes[paths]
    out = torch.zeros(batch.rows, *policy.shape, dtype=policy.dtype)
    out.index_put_((torch.arange(batch.rows)[:, None].expand_as(nodes), nodes), on_logp, accumulate=True)
    return loss, out - policy.exp() * out.sum(2, keepdim=True)


def expected_gradient(
    objective: LossFunction,
    batch: TokenBatch,
    tree: TokenTree,
    paths: Tensor,
    policy: Tensor,
    chances: Tensor,
) -> Tensor:
    """Expected gradient [N,V] on the logits: the rows' own gradients weighted by their ``chances`` [B]."""
    _, rows = row_gradients(objective, batch, tree, paths, policy)
    return torch.einsum("b,bnv->nv", chances, rows)
