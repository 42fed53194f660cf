"""Rambling and concise agents: episodes, exact expectations, training in one batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.tabular.asyncwebrl.verbosity import VerbosityTask, expected, roll, rows, train

CONST = get("asyncwebrl", aggregation="trajectory-sum")
LENGTH = get("asyncwebrl", normaliser="length", aggregation="trajectory-sum")


@pytest.mark.parametrize("z", [2.0, -1.0])
def test_sampled_episodes_agree_with_exact_expectations(z: float) -> None:
    data = roll(VerbosityTask(), z, np.random.default_rng(0), prompts=4000, group=2)
    steps, success = expected(VerbosityTask(), 1 / (1 + np.exp(-z)))
    assert data.length.mean() == pytest.approx(steps, abs=0.15)
    assert data.success.mean() == pytest.approx(success, abs=0.02)
    assert (data.length[~data.success] == 15).all()
    assert (data.length >= 4).all()


def test_concise_agents_are_faster_and_more_successful() -> None:
    (slow, fails), (fast, wins) = expected(VerbosityTask(), 0.9), expected(VerbosityTask(), 0.1)
    assert fast < slow
    assert wins > fails


def test_an_episode_of_certain_steps_takes_exactly_the_needed_ones() -> None:
    assert expected(VerbosityTask(horizon=9, needed=3, bonus=1.0, hard=1.0, easy=1.0), 0.5) == pytest.approx((3.0, 1.0))


def test_a_row_is_a_step_and_an_episode_a_trajectory() -> None:
    data = [roll(VerbosityTask(), 1.0, np.random.default_rng(seed), prompts=2, group=3) for seed in (0, 1)]
    batch, logp, run = rows(data, torch.tensor([1.0, -1.0], dtype=torch.float64))
    lengths = np.concatenate([d.length for d in data])
    assert batch.rows == lengths.sum()
    assert torch.bincount(batch.trajectory).tolist() == lengths.tolist()  # type: ignore[arg-type]
    assert torch.unique(batch.group).tolist() == [0, 1, 6, 7]  # type: ignore[arg-type]
    assert run.bincount().tolist() == [data[0].length.sum(), data[1].length.sum()]
    assert float(batch.rewards.sum()) == sum(d.success.sum() for d in data)  # type: ignore[union-attr]
    assert (logp < 0).all()


@pytest.mark.parametrize("matched", [False, True])
def test_runs_in_one_batch_are_the_runs_alone(matched: bool) -> None:
    together = train(VerbosityTask(), CONST, range(3), matched, updates=20)
    for seed, path in enumerate(together):
        (alone,) = train(VerbosityTask(), CONST, [seed], matched, updates=20)
        assert np.abs(alone.verbosity - path.verbosity).max() < 1e-12


def test_all_trajectories_as_long_as_k_make_the_constant_the_length() -> None:
    task = VerbosityTask(horizon=10, needed=11)  # nobody succeeds
    with_reward = VerbosityTask(horizon=4, needed=4, hard=1.0, easy=1.0, bonus=1.0)  # everybody, in 4 steps
    for fixed, k in ((task, 10.0), (with_reward, 4.0)):
        data = [roll(fixed, 0.0, np.random.default_rng(0))]
        batch, logp, _ = rows(data, torch.zeros(1, dtype=torch.float64, requires_grad=True))
        advantages = torch.randn(batch.rows, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        const = get("asyncwebrl", k=k, aggregation="trajectory-sum")
        assert torch.equal(const(batch, logp, advantages=advantages).total,
                           LENGTH(batch, logp, advantages=advantages).total)  # fmt: skip


def test_only_the_constant_gives_the_policy_gradient() -> None:
    """Enumerate a two-length task: d/dz of expected success against the mean of sum_t A s_t, divided by k or |tau|."""
    task = VerbosityTask(horizon=2, needed=1, bonus=1.8, hard=0.3, easy=0.3)
    z, eps = 0.4, 1e-5
    p = 1 / (1 + np.exp(-z))

    def success(at: float) -> float:
        return expected(task, 1 / (1 + np.exp(-at)))[1]

    truth = (success(z + eps) - success(z - eps)) / (2 * eps)
    const = length = 0.0
    for first in (0, 1):
        for second in (0, 1):
            chance = [0.3 if verbose else 0.54 for verbose in (first, second)]
            prob = [p if verbose else 1 - p for verbose in (first, second)]
            score = [1 - p if verbose else -p for verbose in (first, second)]
            # success in step 1 (the second style is never drawn, so it sums out), success in step 2
            one, two = prob[0] * prob[1] * chance[0], prob[0] * prob[1] * (1 - chance[0]) * chance[1]
            const += one * score[0] + two * sum(score)
            length += one * score[0] + two * sum(score) / 2
    assert const == pytest.approx(truth, abs=1e-8)
    assert abs(length - truth) > 0.05 * abs(truth)


def test_the_matched_scale_needs_the_constant() -> None:
    with pytest.raises(ConfigError, match="normaliser"):
        train(VerbosityTask(), LENGTH, [0], matched=True)
    with pytest.raises(ConfigError, match="trajectory-sum"):
        train(VerbosityTask(), get("asyncwebrl"), [0])
