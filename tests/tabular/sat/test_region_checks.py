"""Token-by-token comparison of clipped surrogates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stretto.objectives import get
from stretto.tabular.lagged.learning import Plan, train
from stretto.tabular.lagged.probe import Probe
from stretto.tabular.lagged.world import World
from stretto.tabular.sat.region_checks import contractions, random_tokens, unlike_nominal, violations


def ppo(**options: Any) -> Any:
    return get("ppo", baseline="group", std=True, **options)


def test_random_tokens_repeat_with_their_seed_and_reach_the_clip() -> None:
    batch, logp, _ = random_tokens(3)
    again = random_tokens(3)
    assert (again[1] == logp).all()
    assert batch.logp_behavior is not None
    widest = [float((random_tokens(s)[1] - random_tokens(s)[0].logp_behavior).abs().max()) for s in range(20)]
    assert max(widest) > 1
    assert min(widest) < 0.2


def test_contraction_acts_on_the_side_of_the_ratio_alone() -> None:
    batch, logp, _ = random_tokens(0)
    low, high = contractions(get("sat", kernel="H2"), batch, logp)
    d = logp - batch.need("logp_behavior")[0]
    assert (low[d > 0] == 1).all()
    assert (high[d < 0] == 1).all()
    assert float(torch.minimum(low, high).min()) < 0.5


def test_a_region_that_differs_from_sat_is_found_out() -> None:
    batch, logp, advantages = random_tokens(0)
    counts, caught = violations(get("sat", kernel="H2"), ppo(clip_low=0.1, clip_high=0.1), batch, logp, advantages)
    assert caught > 0
    assert counts["surrogate above the nominal one"] > 0
    assert counts["slope changed elsewhere"] > 0
    assert unlike_nominal(get("sat"), ppo(), batch, advantages, 0.3) == 0
    assert unlike_nominal(get("sat"), ppo(clip_low=0.4), batch, advantages, 0.3) > 0


def test_the_probe_changes_nothing_and_sees_outward_updates() -> None:
    plan = Plan(lag=3, refresh="window", steps=9, optimizer="sgd", lr=1.0)
    probe = Probe(get("sat"))
    watched, plain = train(World(), probe, plan), train(World(), get("sat"), plan)
    assert (watched.j == plain.j).all()
    assert len(probe.outward) == 9
    assert probe.outward[0] == 0  # on-policy: every ratio is 1
    assert 0 < probe.outward[2] < 1
    assert probe.metrics["sat/radius_high"] == pytest.approx(0.2, abs=0.01)
