"""The contests name objectives, options and arms that exist, and each runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from stretto.objectives import get
from stretto.papers.catalog import find
from stretto.papers.comparisons import COMPARISONS
from stretto.papers.learning import WORLD
from stretto.tabular.lagged.learning import Plan, train
from stretto.tabular.lagged.world import World


@pytest.mark.parametrize("name", COMPARISONS)
def test_each_arm_learns_a_few_steps_from_stale_data(name: str) -> None:
    contest = COMPARISONS[name]
    assert find(name).module is not None
    assert {arm for claim in contest.claims for arm in claim} <= set(contest.arms)
    small: dict[str, Any] = {**WORLD, **contest.world, "depth": 3, "contexts": 8}
    world = World(**small)
    for label, arm in contest.arms.items():
        plan = dataclasses.replace(Plan(**{**contest.plan, "steps": 24}), **arm.plan)
        curve = train(world, get(arm.name, **arm.options), plan, lag=4 + arm.more_lag)
        assert curve.diverged is None, label
        assert curve.j[-1] != curve.j[0], label
        assert 0 < curve.moved[4:].mean() <= 1, label
