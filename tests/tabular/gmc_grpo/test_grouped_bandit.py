"""Groups by enumeration."""

from __future__ import annotations

import math

import pytest
import torch

from stretto.kernel.errors import DataError
from stretto.objectives import get
from stretto.tabular.gmc_grpo.grouped_bandit import GroupedBandit, compositions

BANDIT = GroupedBandit.centred([0.6, 0.3, 0.1], [0.3, 0.3, 0.4], [-0.4, 0.1, 0.6])


def test_compositions_are_all_different_and_complete() -> None:
    found = compositions(5, 3)
    assert len(found) == math.comb(7, 2) == len(torch.unique(found, dim=0))
    assert (found.sum(1) == 5).all()
    with pytest.raises(DataError, match="at least one part"):
        compositions(3, 0)


def test_the_bandit_refuses_what_is_no_distribution() -> None:
    with pytest.raises(DataError, match="behavior must hold 2 positive shares"):
        GroupedBandit.centred([0.6, 0.3], [0.5, 0.5], [0, 1])


def test_the_true_gradient_is_that_of_the_expected_advantage() -> None:
    logits = BANDIT.policy.log().requires_grad_()
    (torch.softmax(logits, 0) @ BANDIT.advantages).backward()
    assert torch.allclose(BANDIT.true_gradient(), logits.grad, atol=1e-15)  # type: ignore[arg-type]
    assert float(BANDIT.true_gradient().norm()) == pytest.approx(0.2446, abs=5e-5)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_untruncated_weights_have_no_bias_and_variance_over_g(size: int) -> None:
    unbiased = get("tis", cap=1e9, aggregation="seq-mean-token-mean")
    mean, second = BANDIT.moments(unbiased, size)
    assert torch.allclose(mean, BANDIT.true_gradient(), atol=1e-15)
    _, single = BANDIT.moments(unbiased, 1)
    true = float(BANDIT.true_gradient().square().sum())
    assert second == pytest.approx(true + (single - true) / size, abs=1e-15)


def test_truncation_is_biased_alike_at_every_group_size() -> None:
    capped = get("tis", cap=1.2, aggregation="seq-mean-token-mean")
    for size in (1, 3, 16):
        bias = BANDIT.moments(capped, size)[0] - BANDIT.true_gradient()
        assert float(bias.norm()) == pytest.approx(0.0926, abs=5e-5)
