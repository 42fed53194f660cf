"""Three exact routes to old log-probabilities on trajectories that mix versions."""

from __future__ import annotations

import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.old_logits import scoring_routes
from stretto.tabular.old_logits.scoring_routes import compare_routes


@pytest.mark.parametrize("interval", [1, 5, 40])
@pytest.mark.parametrize("wait", [0, 3])
def test_all_routes_find_what_the_trainer_had_bit_for_bit(interval: int, wait: int) -> None:
    found = compare_routes(interval, updates=60, wait=wait)
    assert found.tokens > 0
    assert found.error == {"snapshots": 0.0, "replica": 0.0, "interrupt": 0.0}
    assert found.versions > 1


def test_a_segment_scored_under_the_next_version_would_show(monkeypatch: pytest.MonkeyPatch) -> None:
    honest, real = scoring_routes._weights, scoring_routes._score_segment
    monkeypatch.setattr(
        scoring_routes, "_score_segment", lambda rollout, start, weights: real(rollout, start, honest(0, 7))
    )
    found = compare_routes(8, updates=20)
    assert found.error["replica"] > 0.1
    assert found.error["snapshots"] == 0


def test_faster_updates_cost_snapshots_memory_and_everybody_passes() -> None:
    slow, fast = compare_routes(32, updates=60), compare_routes(4, updates=60)
    assert fast.versions > slow.versions
    assert fast.cost["snapshots"].copies > slow.cost["snapshots"].copies
    assert fast.cost["snapshots"].copies == fast.staleness
    assert (fast.cost["replica"].copies, fast.cost["interrupt"].copies) == (1, 0)
    for name in fast.cost:
        assert fast.cost[name].forward / fast.tokens > slow.cost[name].forward / slow.tokens


def test_only_the_interruption_stops_rollouts_while_the_replica_keeps_up() -> None:
    found = compare_routes(16)
    assert found.cost["interrupt"].stall == pytest.approx(found.cost["interrupt"].forward / 200)
    assert found.cost["snapshots"].stall == found.cost["replica"].stall == 0
    assert compare_routes(16, speed=5).cost["replica"].stall > 0, "a replica that is too slow holds the next version up"


def test_settings_that_cannot_be_are_errors() -> None:
    with pytest.raises(ConfigError, match="positive"):
        compare_routes(0)
    with pytest.raises(ConfigError, match="no trajectory trained"):
        compare_routes(1, updates=2)
