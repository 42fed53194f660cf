"""The bandit with an engine that isn't quite the trainer."""

from __future__ import annotations

import pytest

from stretto.kernel.errors import ConfigError
from stretto.objectives import get
from stretto.tabular.old_logits.mismatched_bandit import Route, sample_mismatched_bandit, train

MASKED = get("decoupled-ppo", reference="old", correction="mask", floor=0.9, cap=1.1)
FREE = get("decoupled-ppo", reference="old", correction="none", clip_low=1.0, clip_high=1e9)


@pytest.mark.parametrize("route", ["ewma", "recompute"])
def test_on_fresh_data_the_routes_but_the_proxy_are_exact(route: Route) -> None:
    world = sample_mismatched_bandit(0)
    assert train(world, MASKED, route, 0, 0, steps=40) == train(world, MASKED, "exact", 0, 0, steps=40)


def test_the_proxy_is_wrong_on_fresh_data_and_hides_the_engines_noise() -> None:
    world = sample_mismatched_bandit(0)
    exact, proxy = (train(world, MASKED, route, 0, 0, steps=40) for route in ("exact", "proxy"))
    assert exact.error == exact.differs == 0
    assert proxy.error > 0.01
    assert proxy.dropped < 0.1 * exact.dropped


def test_a_trainer_without_mismatch_drops_nothing_by_the_first_factor() -> None:
    found = train(sample_mismatched_bandit(0, noise=0.0), MASKED, "exact", 16, 0, steps=40)
    assert found.dropped == found.differs == 0


def test_without_gate_and_clip_the_old_policy_does_not_matter() -> None:
    world = sample_mismatched_bandit(0)
    values = [train(world, FREE, route, 8, 0, steps=30).value for route in ("exact", "ewma", "proxy", "recompute")]
    assert values == pytest.approx([values[0]] * 4, abs=1e-12)


def test_staleness_makes_recomputing_worse_than_averaging() -> None:
    world = sample_mismatched_bandit(1)
    ewma, recompute = (train(world, MASKED, route, 16, 0, steps=80) for route in ("ewma", "recompute"))
    assert ewma.error < recompute.error
    assert ewma.dropped < recompute.dropped


def test_settings_that_cannot_be_are_errors() -> None:
    with pytest.raises(ConfigError, match="lag_bound"):
        train(sample_mismatched_bandit(0), MASKED, "exact", -1, 0)
