"""The token tree against hand-made figures and against autograd."""

from __future__ import annotations

import pytest
import torch

from stretto.kernel.errors import DataError
from stretto.tabular.token_tree.tree import TokenTree, gibbs

SMALL = TokenTree(torch.tensor([[-1, 1], [-1, -1]]), torch.tensor([[0.2, 0.0], [1.1, -0.5]], dtype=torch.float64))
SAMPLER = torch.tensor([[0.3, 0.7], [0.6, 0.4]], dtype=torch.float64).log()
POLICY = torch.log_softmax(torch.tensor([[0.5, -0.2], [-0.6, 0.9]], dtype=torch.float64), 1)


def random_policy(tree: TokenTree, seed: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.log_softmax(torch.randn(tree.children.shape, generator=g, dtype=torch.float64), 1)


def test_paths_of_a_ragged_tree() -> None:
    assert SMALL.mask.tolist() == [[True, False], [True, True], [True, True]]
    assert SMALL.reward.tolist() == [0.2, 1.1, -0.5]
    assert SMALL.chance(SAMPLER).tolist() == pytest.approx([0.3, 0.42, 0.28])
    batch = SMALL.rows(SAMPLER)
    assert batch.rewards is not None
    assert batch.rewards.tolist() == [[0.2, 0], [0, 1.1], [0, -0.5]]


def test_values_of_the_small_tree() -> None:
    assert SMALL.visits(SAMPLER).tolist() == pytest.approx([1, 0.7])
    assert SMALL.value(SAMPLER) == pytest.approx(0.382)
    expected = torch.tensor([[-0.182, 0.078], [0.64, -0.96]], dtype=torch.float64)
    assert torch.allclose(SMALL.advantages(SAMPLER), expected, atol=1e-12)
    root = (SAMPLER[0].exp() * (SAMPLER[0] - POLICY[0])).sum()
    assert float(root) == pytest.approx(0.2823217468, abs=1e-10)


def test_a_full_tree_has_every_sequence_and_consistent_sums() -> None:
    tree = TokenTree.full(3, 3, seed=1)
    policy, other = random_policy(tree, 2), random_policy(tree, 3)
    assert tree.nodes.shape == (27, 3)
    assert float(tree.chance(policy).sum()) == pytest.approx(1)
    assert tree.visits(policy)[[0, 1, 2, 3]].tolist() == pytest.approx([1, *policy[0].exp().tolist()])
    assert float(policy[0].exp() @ tree.q_values(policy)[0]) == pytest.approx(tree.value(policy))
    p, q = tree.chance(policy), tree.chance(other)
    assert tree.divergence(policy, other) == pytest.approx(float((p * (p / q).log()).sum()))


def test_the_gibbs_policy_makes_every_residual_zero() -> None:
    tree = TokenTree.full(4, 2, seed=5)
    sampler = random_policy(tree, 6)
    target = gibbs(tree, sampler, 0.5)
    kl = (sampler.exp() * (sampler - target)).sum(1, keepdim=True)
    assert float((tree.advantages(sampler) - 0.5 * (target - sampler + kl)).abs().max()) < 1e-13


def test_a_child_before_its_parent_is_refused() -> None:
    with pytest.raises(DataError, match="higher number"):
        TokenTree(torch.tensor([[0, -1]]), torch.zeros(1, 2, dtype=torch.float64))
