"""Random walks on which stale critics learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stretto.objectives import get
from stretto.tabular.brace.random_walk import RandomWalk, learn, reward_weight, window

BOUNDS = {"rho_bar": 1.2, "c_bar": 1.1}


@pytest.fixture(scope="module")
def walk() -> RandomWalk:
    return RandomWalk(12, 6, 0.3, 0.25, seed=3)


def test_values_and_visits_agree_on_the_expected_reward(walk: RandomWalk) -> None:
    d, v = walk.visits(), walk.values(walk.behaviour)
    assert np.allclose(d.sum(1), 1)
    # the expected reward is the same read off at any time
    assert np.allclose((d * v).sum(1), v[0, walk.top // 2])


def test_samples_have_the_exact_visits_value_and_ratios(walk: RandomWalk) -> None:
    places, batch, logp = walk.sample(40_000, np.random.default_rng(0))
    share = np.stack([np.bincount(places[:, t], minlength=walk.top + 1) for t in range(walk.steps)]) / len(places)
    assert np.abs(share - walk.visits()).max() < 0.01
    reward = batch.rewards[:, -1]  # type: ignore[index]
    assert float(reward.mean()) == pytest.approx(walk.values(walk.behaviour)[0, 3], abs=0.01)
    ratio = (logp - batch.logp_behavior).sum(1).exp()  # type: ignore[operator]
    assert float(ratio.mean()) == pytest.approx(1, abs=0.05)
    assert float((ratio * reward).mean()) == pytest.approx(walk.values(walk.current)[0, 3], abs=0.04)


def test_a_critic_of_the_current_policy_has_no_error(walk: RandomWalk) -> None:
    assert (walk.rmse(walk.values(walk.current)) == 0).all()
    assert walk.rmse(walk.values(walk.behaviour))[0] > 0.01


def test_monte_carlo_learns_the_behaviour_policys_values(walk: RandomWalk) -> None:
    table = learn(walk, {"mc": get("brace", k=0).targets}, 40, 4000, 0.3, (40,))[40]["mc"]
    weighted = walk.visits() * (table - walk.values(walk.behaviour)) ** 2
    assert np.sqrt(weighted.sum() / walk.steps) < 0.01 < walk.rmse(table)[0]


def test_learning_repeats_itself_and_depends_on_the_seed(walk: RandomWalk) -> None:
    estimators = {"b": get("brace", k=4).targets}
    first, again, other = (learn(walk, estimators, 3, 50, 0.5, (1, 3), seed)[3]["b"] for seed in (0, 0, 1))
    assert (first == again).all()
    assert (first != other).any()


def test_a_cut_window_is_the_sum_of_its_residuals(walk: RandomWalk) -> None:
    places, batch, logp = walk.sample(20, np.random.default_rng(1))
    v = np.random.default_rng(2).random((walk.steps, walk.top + 1))[np.arange(walk.steps), places]
    batch = batch.replace(values=torch.from_numpy(v))
    w = (logp - batch.logp_behavior).exp().numpy()  # type: ignore[operator]
    rho, c = np.minimum(1.2, w), np.minimum(1.1, w)
    delta = batch.rewards.numpy() + np.pad(v[:, 1:], ((0, 0), (0, 1))) - v  # type: ignore[union-attr]
    for k in (1, 5, 12, 30):
        expected = v.copy()
        for s in range(walk.steps):
            for t in range(s, min(s + k, walk.steps)):
                expected[:, s] += c[:, s:t].prod(1) * rho[:, t] * delta[:, t]
        found = window(get("vtrace", **BOUNDS).targets, k, 1.1)(batch, logp)
        assert np.allclose(found.numpy(), expected, rtol=0, atol=1e-12), k


def test_the_rewards_weight_is_the_windows_product_in_brace_and_nothing_in_a_cut_window(walk: RandomWalk) -> None:
    _, batch, logp = walk.sample(50, np.random.default_rng(1))
    batch = batch.replace(values=torch.rand_like(logp))
    traces = (logp - batch.logp_behavior).clamp(max=np.log(1.1))  # type: ignore[operator]
    k = 4
    anchored = reward_weight(get("brace", k=k).targets, batch, logp)
    for s in range(walk.steps):
        j = min(s + k, walk.steps - 1)
        assert torch.allclose(anchored[:, s], traces[:, s:j].sum(1).exp(), rtol=0, atol=1e-12)
    cut = reward_weight(window(get("vtrace", **BOUNDS).targets, k, 1.1), batch, logp)
    assert float(cut[:, : walk.steps - k].abs().max()) < 1e-12 < float(cut[:, -k:].min())
