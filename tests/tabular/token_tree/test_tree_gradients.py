"""Exact expected gradients of objectives on the token tree, and KLPO's population quantities."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_token_tree import POLICY, SAMPLER, SMALL, random_policy
from torch import Tensor

from stretto.objectives import get
from stretto.tabular.klpo.population import (
    SharedColumns,
    descend,
    learn,
    population_gradient,
    population_objective,
    residuals,
    score_covariance,
)
from stretto.tabular.token_tree.gradients import (
    all_draws,
    expected_gradient,
    row_gradients,
    sample_rows,
    with_draws,
    with_head,
)
from stretto.tabular.token_tree.tree import TokenTree, gibbs

SUM: dict[str, Any] = {"baseline": "none", "std": False, "aggregation": "seq-mean-token-sum"}
BETA = 0.4


def policy_gradient(tree: TokenTree, table: Tensor) -> Tensor:
    """d(s) p(b|s) A(s,b), of the expected reward on the logits."""
    return tree.visits(table)[:, None] * table.exp() * tree.advantages(table)


def test_reinforce_on_its_own_policy_has_the_policy_gradient() -> None:
    paths = torch.arange(3)
    g = expected_gradient(get("reinforce", **SUM), SMALL.rows(SAMPLER), SMALL, paths, SAMPLER, SMALL.chance(SAMPLER))
    assert torch.allclose(-g, policy_gradient(SMALL, SAMPLER), atol=1e-15)


def test_whole_sequence_ratios_correct_any_sampler() -> None:
    tree = TokenTree.full(3, 3, seed=1)
    sampler, policy = random_policy(tree, 2), random_policy(tree, 3)
    exact = get("tis", cap=1e12, level="sequence", **SUM)
    g = expected_gradient(exact, tree.rows(sampler), tree, torch.arange(27), policy, tree.chance(sampler))
    assert torch.allclose(-g, policy_gradient(tree, policy), atol=1e-14)


def test_rows_have_gradients_of_their_own_that_average_to_the_batch() -> None:
    tree = TokenTree.full(3, 2, seed=1)
    sampler, logits = random_policy(tree, 2), random_policy(tree, 3).requires_grad_()
    paths, _ = sample_rows(tree, sampler, 50, 1, seed=4)
    batch = tree.rows(sampler, paths)
    objective = get("tis", **SUM)
    _, rows = row_gradients(objective, batch, tree, paths, torch.log_softmax(logits.detach(), 1))
    table = torch.log_softmax(logits, 1)
    objective(batch, table[tree.nodes[paths], batch.tokens]).total.backward()
    assert torch.allclose(rows.mean(0), logits.grad, atol=1e-15)  # type: ignore[arg-type]


def test_draws_follow_the_sampler_and_their_enumeration_sums_to_one() -> None:
    paths, tokens, chances = all_draws(SMALL, SAMPLER, 2)
    assert len(paths) == 3 * 2**4
    assert float(chances.sum()) == pytest.approx(1)
    paths, tokens = sample_rows(SMALL, SAMPLER, 40_000, 2, seed=1)
    assert float((tokens[:, 0] == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert float((tokens[paths > 0, 1] == 0).double().mean()) == pytest.approx(0.6, abs=0.01)
    assert float((paths == 1).double().mean()) == pytest.approx(0.42, abs=0.01)


def test_the_head_holds_the_likeliest_tokens() -> None:
    tree = TokenTree.full(4, 2, seed=1)
    sampler, paths = random_policy(tree, 2), torch.arange(16)
    head = with_head(tree.rows(sampler), tree, sampler, paths, k=2)
    assert head.top_tokens is not None
    assert head.top_logp_behavior is not None
    assert head.top_tokens.shape == (16, 2, 2)
    assert float(head.top_logp_behavior[0, 0, 0]) == float(sampler[0].max())


def test_kl_fit_of_the_small_tree() -> None:
    assert population_objective(SMALL, SAMPLER, POLICY, BETA) == pytest.approx(1.3745647608726, abs=1e-9)
    logits = POLICY.clone().requires_grad_()
    table = torch.log_softmax(logits, 1)
    loss = SMALL.visits(SAMPLER) @ (SAMPLER.exp() * residuals(SMALL, SAMPLER, table, BETA).square()).sum(1) / (2 * BETA)
    loss.backward()
    exact = population_gradient(SMALL, SAMPLER, POLICY, BETA)
    assert torch.allclose(exact, logits.grad, atol=1e-14)  # type: ignore[arg-type]
    assert exact[0].tolist() == pytest.approx([0.1845730203, -0.1845730203], abs=1e-10)


@pytest.mark.parametrize("draws", [2, 3])
def test_residuals_that_share_the_column_of_the_score_are_biased_by_a_covariance(draws: int) -> None:
    paths, tokens, chances = all_draws(SMALL, SAMPLER, draws)
    batch = with_draws(SMALL.rows(SAMPLER, paths), SMALL, SAMPLER, paths, tokens)
    exact = population_gradient(SMALL, SAMPLER, POLICY, BETA)
    for objective, share in ((SharedColumns(BETA, "own"), 1), (SharedColumns(BETA, "mean"), draws)):
        bias = expected_gradient(objective, batch, SMALL, paths, POLICY, chances) - exact
        assert torch.allclose(bias, BETA * score_covariance(SMALL, SAMPLER, POLICY) / share, atol=1e-14)
        assert float(bias.abs().max()) > 0.04


def test_uncorrected_descent_leaves_the_gibbs_policy_behind() -> None:
    tree = TokenTree.full(3, 2, seed=3)
    sampler = random_policy(tree, 4)
    near, far = descend(tree, get("reinforce", **SUM), sampler, steps=[20, 200], lr=2.0, beta=0.5)
    assert far.distance > 2 * near.distance
    assert far.value > tree.value(sampler)


def test_windows_end_every_refresh_and_repeat_with_their_seed() -> None:
    tree = TokenTree.full(3, 2, seed=3)
    start = random_policy(tree, 4)
    options: dict[str, Any] = {"refresh": 4, "steps": 10, "prompts": 8, "lr": 0.5, "beta": 0.5, "seed": 1}
    runs = [learn(tree, get("reinforce", **SUM), start, **options) for _ in range(2)]
    assert runs[0] == runs[1]
    assert len(runs[0]) == 2
    assert runs[0][1].value > tree.value(start)
    first = gibbs(tree, start, 0.5)
    assert runs[0][0].distance < tree.divergence(first, start)
