"""Bandits whose rewarded style flips."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stretto.objectives import get
from stretto.tabular.sao.style_bandit import Followed, StyleBandit, follow


def test_the_rewarded_style_flips_and_only_suited_content_earns_all() -> None:
    world = StyleBandit(range(2), contexts=50, flip=10)
    before, after = world.rewards(9), world.rewards(10)
    assert (before[..., 2:] == 0).all()
    assert (after[..., :2] == 0).all()
    assert torch.equal(before[..., :2], after[..., 2:])
    assert torch.equal(before, world.rewards(20))
    assert sorted(before.unique().tolist()) == [0, 0.5, 1]
    assert (before.amax(2) == 1).all()


def test_each_seed_learns_as_if_it_were_alone() -> None:
    how = {"baseline": "critic", "rollouts": 16, "updates": 20}
    both = follow(StyleBandit([3, 8], contexts=40, flip=10), get("sao"), **how)  # type: ignore[arg-type]
    alone = follow(StyleBandit([8], contexts=40, flip=10), get("sao"), **how)  # type: ignore[arg-type]
    assert np.allclose(both.j[1], alone.j[0], rtol=0, atol=1e-10)
    assert both.j[0] != pytest.approx(both.j[1], abs=1e-3)


def test_all_arms_start_from_the_uniform_policy_and_learn_the_style() -> None:
    world = StyleBandit(range(3), contexts=60, flip=50)
    for name, baseline, group in (("sao", "critic", 1), ("sao", "running-mean", 1), ("grpo", "own", 8)):
        run = follow(world, get(name), baseline=baseline, group=group, updates=50)  # type: ignore[arg-type]
        assert run.j[:, 0] == pytest.approx(0.375)
        assert (run.j[:, -1] > 0.6).all()


def test_recovery_counts_updates_after_each_flip_and_stops_at_the_next() -> None:
    j = np.array([[0.0, 1, 1, 0, 0, 1, 0, 0, 0]])
    assert Followed(j, (0, 0), (0, 0)).recovery(3, 0.5) == pytest.approx([2.5])


def test_at_a_lag_ppo_moves_tokens_beyond_the_interval_and_sao_does_not() -> None:
    world = StyleBandit(range(3), flip=50)
    far = {"baseline": "critic", "lag": 16, "lr": 3.0, "limits": (0.2, 2.0), "updates": 150}
    sao = follow(world, get("sao", clip_low=0.8, clip_high=1.0), **far)  # type: ignore[arg-type]
    ppo = follow(world, get("ppo", baseline="gae", std=False), **far)  # type: ignore[arg-type]
    assert sao.moved == (0, 0)
    assert min(sao.beyond) > 0
    assert ppo.moved == ppo.beyond
    assert min(ppo.beyond) > 0


def test_without_a_lag_no_ratio_leaves_one() -> None:
    world = StyleBandit([0], contexts=40, flip=50)
    run = follow(world, get("sao"), baseline="critic", updates=50, limits=(1 - 1e-9, 1 + 1e-9))
    assert run.beyond == (0, 0)
