"""The bandit that can't be solved: exact gradients, exact training, and where stale step sizes break it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.tabular.collapse import collapse_bandit


@pytest.fixture(scope="module")
def bandit() -> collapse_bandit.CollapseBandit:
    return collapse_bandit.sample_bandit(0)


@pytest.mark.parametrize("rule", ["none", "is", "clip"])
def test_the_gradient_is_that_of_the_objective(
    bandit: collapse_bandit.CollapseBandit, rule: collapse_bandit.Rule
) -> None:
    behavior, current = bandit.start, bandit.start + collapse_bandit.sample_bandit(1, scale=0.7).start
    weights = torch.tensor(current, requires_grad=True)
    logp = (torch.tensor(bandit.features) @ weights).log_softmax(1)
    lb = torch.tensor(bandit.logp(behavior))
    batch = TokenBatch(mask=torch.ones(logp.shape, dtype=torch.bool), logp_behavior=lb)
    objective = {
        "none": get("reinforce"),
        "is": get("grpo", clip_low=1.0, clip_high=1e9, aggregation="token-mean"),
        "clip": get("grpo", aggregation="token-mean"),
    }[rule]
    advantages = lb.exp() * torch.tensor(bandit.advantages(behavior)) * logp.shape[1]
    objective(batch, logp, advantages=advantages).total.backward()
    assert weights.grad is not None
    assert np.abs(-weights.grad.numpy() - bandit.gradient(current, behavior, rule)).max() < 1e-12


def test_advantages_have_no_mean_and_unit_deviation_under_the_policy(bandit: collapse_bandit.CollapseBandit) -> None:
    p, a = np.exp(bandit.logp(bandit.start)), bandit.advantages(bandit.start)
    assert np.abs((p * a).sum(1)).max() < 1e-12
    assert (p * a**2).sum(1) == pytest.approx(1.0)


def test_exact_importance_weights_make_one_policys_gradient_of_anothers_data(
    bandit: collapse_bandit.CollapseBandit,
) -> None:
    """sum mu (pi/mu) A grad log pi = sum pi A grad log pi, with the same A."""
    behavior, current = bandit.start, bandit.start + 0.5
    current[:, 0] += 1.0
    stale = bandit.gradient(current, behavior, "is")
    p, a = np.exp(bandit.logp(current)), bandit.advantages(behavior)
    push = p * a
    direct = bandit.features.T @ (push - push.sum(1, keepdims=True) * p) / len(p)
    assert np.abs(stale - direct).max() < 1e-12


def test_fresh_training_climbs_and_is_what_the_gradient_says(bandit: collapse_bandit.CollapseBandit) -> None:
    values = collapse_bandit.train(bandit, 1, 0.5, 3, "sgd")
    weights = bandit.start.copy()
    for value in values:
        assert value == pytest.approx(bandit.value(weights), abs=1e-12)
        weights += 0.5 * bandit.gradient(weights, weights)
    assert collapse_bandit.reference(bandit) > 5 * values[0]


def test_the_stale_bias_starts_at_zero_and_grows_linearly_in_each_cycle(bandit: collapse_bandit.CollapseBandit) -> None:
    bias = collapse_bandit.stale_bias(bandit, 16, 0.1, 6)
    assert (bias[:, 0] == 0).all()
    steps = np.arange(1, 16)
    assert np.ptp(bias[:, 1:] / steps, axis=1) == pytest.approx(0, abs=0.03 * bias[0, 1])


def test_the_stale_bias_is_proportional_to_interval_and_rate(bandit: collapse_bandit.CollapseBandit) -> None:
    settings = ((4, 0.4), (8, 0.2), (16, 0.1), (4, 0.8), (16, 0.2))
    slopes = [collapse_bandit.stale_bias(bandit, s, rate, 6)[-1].max() / ((s - 1) * rate) for s, rate in settings]
    assert [round(slope, 4) for slope in slopes] == [0.0014, 0.0014, 0.0014, 0.0013, 0.0013]


def test_the_largest_stable_rate_falls_with_the_interval() -> None:
    bandits = [collapse_bandit.sample_bandit(seed) for seed in range(3)]
    rates = np.array([[collapse_bandit.largest_stable_rate(b, s) for s in (4, 16, 64)] for b in bandits])
    assert np.exp(np.log(rates).mean(0)) * (4, 16, 64) == pytest.approx([6.45, 7.24, 4.56], abs=0.005)


def test_runs_that_cannot_be_are_errors(bandit: collapse_bandit.CollapseBandit) -> None:
    for interval, rate, steps in ((0, 0.1, 5), (1, 0.0, 5), (1, 0.1, 0)):
        with pytest.raises(ConfigError, match="train"):
            collapse_bandit.train(bandit, interval, rate, steps)
