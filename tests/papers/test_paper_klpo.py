"""KLPO's experiment."""

from __future__ import annotations

import pytest
import torch

from stretto.objectives import get
from stretto.papers import Settings, klpo
from stretto.tabular.klpo.population import descend
from stretto.tabular.token_tree.tree import TokenTree


def test_the_identities_hold_to_1e_8() -> None:
    checks = klpo.identities()
    assert len(checks) == 9
    assert all(check.passed for check in checks)


def test_klpo_settles_at_the_gibbs_policy_of_its_sampler_and_reinforce_does_not() -> None:
    tree = TokenTree.full(3, 2, seed=1)
    sampler = torch.log_softmax(torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), 1)
    fit = klpo.klpo("token", "full")
    near = descend(tree, fit, sampler, steps=[50, 400], lr=4.0, beta=klpo.STALE_BETA)
    plain = descend(tree, get("reinforce", **klpo.PLAIN), sampler, steps=[50, 400], lr=4.0, beta=klpo.STALE_BETA)
    assert near[1].distance < 1e-12 < near[0].distance
    assert plain[1].distance > 2 * plain[0].distance


def test_a_variance_that_does_not_fall_with_m_fails() -> None:
    falling = [1 + 3 / m for m in klpo.DRAWS]
    assert [c.passed for c in klpo.sweep(falling, 1.0)] == [True, True]
    assert [c.passed for c in klpo.sweep([2.0, 1.0, 2.0, 1.0, 2.0], 1.0)] == [False, False]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 100])
def test_the_experiment_passes(seed: int) -> None:
    assert klpo.reproduce(Settings(first_seed=seed)).passed
