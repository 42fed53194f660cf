"""A tree of tokens with one free logit per (prefix, token): everything about a policy on it is a finite sum.

A policy is a table of log-probabilities [N,V]: N prefixes (node 0 is the root), V tokens. All float64 torch. Rows are
root-to-leaf paths, padded to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError


@dataclass(frozen=True)
class TokenTree:
    """``children`` [N,V]: the node after each token, -1 where the sequence ends there; ``rewards`` [N,V]: what it
    ends with (ignored elsewhere). A child's number is above its parent's. ``DataError`` otherwise.

    ``nodes``, ``actions`` [P,T] int64, ``mask`` [P,T] bool, ``reward`` [P]: all P paths.
    """

    children: Tensor
    rewards: Tensor
    nodes: Tensor = field(init=False)
    actions: Tensor = field(init=False)
    mask: Tensor = field(init=False)
    reward: Tensor = field(init=False)

    def __post_init__(self) -> None:
        parents = torch.arange(len(self.children))[:, None]
        if not bool(((self.children == -1) | (self.children > parents)).all()):
            raise DataError("TokenTree: a child must have a higher number than its parent, or be -1 at an end")
        paths: list[list[tuple[int, int]]] = []

        def walk(node: int, path: list[tuple[int, int]]) -> None:
            for token, child in enumerate(self.children[node].tolist()):
                here = [*path, (node, token)]
                if child < 0:
                    paths.append(here)
                else:
                    walk(child, here)

        walk(0, [])
        width = max(len(p) for p in paths)
        padded = torch.tensor([p + [(0, 0)] * (width - len(p)) for p in paths])
        ends = torch.tensor([p[-1] for p in paths])
        lengths = torch.tensor([len(p) for p in paths])
        object.__setattr__(self, "nodes", padded[..., 0])
        object.__setattr__(self, "actions", padded[..., 1])
        object.__setattr__(self, "mask", torch.arange(width) < lengths[:, None])
        object.__setattr__(self, "reward", self.rewards[ends[:, 0], ends[:, 1]])

    @classmethod
    def full(cls, vocabulary: int, depth: int, seed: int = 0) -> TokenTree:
        """Every sequence of ``depth`` tokens; the rewards of the V^depth leaves are standard normal."""
        size = (vocabulary**depth - 1) // (vocabulary - 1)
        inner = (vocabulary ** (depth - 1) - 1) // (vocabulary - 1)
        heap = torch.arange(size)[:, None] * vocabulary + 1 + torch.arange(vocabulary)
        children = torch.where(torch.arange(size)[:, None] < inner, heap, -1)
        g = torch.Generator().manual_seed(seed)
        return cls(children, torch.randn(size, vocabulary, generator=g, dtype=torch.float64))

    def chance(self, table: Tensor) -> Tensor:
        """Probability [P] of each root-to-leaf path under the policy ``table`` [N,V] of log-probabilities."""
        return torch.where(self.mask, table[self.nodes, self.actions], 0.0).sum(1).exp()

    def visits(self, table: Tensor) -> Tensor:
        """Probability [N] that a sequence of the policy ``table`` [N,V] passes each prefix."""
        reach = torch.zeros(len(table), dtype=table.dtype)
        spread = self.mask * self.chance(table)[:, None]
        # a path through a prefix passes it once; its share of paths below the prefix adds up to the visit
        return reach.index_add(0, self.nodes.flatten(), spread.flatten())

    def q_values(self, table: Tensor) -> Tensor:
        """Expected reward [N,V] after each token at each prefix if the policy ``table`` [N,V] goes on from there."""
        q = self.rewards.clone()
        for node in range(len(q) - 1, -1, -1):
            for token, child in enumerate(self.children[node].tolist()):
                if child >= 0:
                    q[node, token] = table[child].exp() @ q[child]
        return q

    def advantages(self, table: Tensor) -> Tensor:
        """Advantage [N,V] of each token at each prefix: its Q-value minus the prefix's value under ``table`` [N,V]."""
        q = self.q_values(table)
        return q - (table.exp() * q).sum(1, keepdim=True)

    def value(self, table: Tensor) -> float:
        """Expected reward of a sequence of the policy ``table`` [N,V]."""
        return float(self.chance(table) @ self.reward)

    def divergence(self, table: Tensor, other: Tensor) -> float:
        """KL(table || other) of whole sequences, in nats; both [N,V] log-probabilities."""
        return float(self.visits(table) @ (table.exp() * (table - other)).sum(1))

    def rows(self, sampler: Tensor, paths: Tensor | None = None, groups: Sequence[int] | None = None) -> TokenBatch:
        """A batch of these ``paths`` [B] (None: each once) as the policy ``sampler`` [N,V] recorded them; every row is
        a group of its own unless ``groups`` says otherwise."""
        at = torch.arange(len(self.reward)) if paths is None else paths
        mask, nodes, actions = self.mask[at], self.nodes[at], self.actions[at]
        lengths = mask.sum(1)
        rewards = torch.zeros(mask.shape, dtype=torch.float64)
        rewards[torch.arange(len(at)), lengths - 1] = self.reward[at]
        there = sampler[nodes]
        return TokenBatch(
            mask=mask,
            tokens=actions,
            logp_behavior=there.gather(2, actions[..., None])[..., 0],
            entropy=-(there.exp() * there).sum(2),
            rewards=rewards,
            group=torch.arange(len(at)) if groups is None else torch.tensor(groups),
            trajectory=torch.arange(len(at)),
            length=lengths,
        )


def gibbs(tree: TokenTree, sampler: Tensor, beta: float) -> Tensor:
    """Log-probabilities [N,V] of the Gibbs policy q exp(Q/beta) / Z at each prefix, Q of the ``sampler`` q itself:
    where KLPO's optimality condition holds exactly (arXiv 2610.08963)."""
    return torch.log_softmax(sampler + tree.q_values(sampler) / beta, 1)
