"""The small world of prompts and stale responses."""

from __future__ import annotations

import itertools

import pytest
import torch

from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.tabular.asympo.prompt_bandit import sample_prompt_bandit, train

NAIVE = get("reinforce", std=True, aggregation="seq-mean-token-mean")


def test_success_is_exact() -> None:
    prompts = sample_prompt_bandit(0, count=3, size=2, tokens=3, vocabulary=4)
    weights = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    p = prompts.logp(weights, torch.arange(3)).exp()
    total = 0.0
    for i, tokens in itertools.product(range(3), itertools.product(range(4), repeat=3)):
        reward = prompts.reward(torch.tensor([i]), torch.tensor([tokens]))
        total += float(reward) * float(torch.stack([p[i, t, v] for t, v in enumerate(tokens)]).prod()) / 3
    assert prompts.success(weights) == pytest.approx(total, abs=1e-12)


def test_the_targets_can_be_learnt() -> None:
    prompts = sample_prompt_bandit(0)
    run = train(prompts, NAIVE, 0.1, seed=0, steps=96, sync_interval=8)
    assert run.success[0] == pytest.approx(1 - (15 / 16) ** 4 - 4 * (1 / 16) * (15 / 16) ** 3)
    assert run.success[-1] > 0.5


def test_a_run_repeats_from_its_seed_and_counts_its_lag() -> None:
    a, b, c = (train(sample_prompt_bandit(0), NAIVE, 0.05, seed, steps=10, sync_interval=4) for seed in (1, 1, 2))
    assert torch.equal(a.weights, b.weights)
    assert not torch.equal(a.weights, c.weights)
    assert [step.lag for step in a.steps] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert len(a.success) == 3 + 1


def test_the_value_of_a_balanced_loss_is_zero_and_it_learns_all_the_same() -> None:
    run = train(sample_prompt_bandit(0), get("asympo"), 0.1, seed=0, steps=64, sync_interval=8)
    assert max(abs(step.value) for step in run.steps) < 1e-12
    assert run.success[-1] > 3 * run.success[0]


def test_settings_that_cannot_be_are_errors() -> None:
    for rate, steps, interval in ((0.0, 5, 1), (0.1, 0, 1), (0.1, 5, 0)):
        with pytest.raises(ConfigError, match="train"):
            train(sample_prompt_bandit(0), NAIVE, rate, 0, steps=steps, sync_interval=interval)
