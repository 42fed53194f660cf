"""PEARL's predictor, choice, hysteresis and gate, against the specification's figures and by properties."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.control.pearl import (
    LATENCIES,
    PRESETS,
    Decision,
    Hysteresis,
    RolloutProfile,
    ToggleCost,
    Topology,
    bubble_ratio,
    decide,
    decode_s,
    feasible,
    makespan_s,
    prefill_s,
    topologies,
    worth_borrowing,
)
from stretto.kernel.errors import ConfigError, InvariantError

PROPERTY = settings(max_examples=100, derandomize=True)
SMALL, LARGE = PRESETS["pearl-8b"], PRESETS["pearl-30b"]
NONE = Hysteresis(0, 0)
profiles = st.builds(
    RolloutProfile,
    turns=st.floats(1, 60), turn_tokens=st.floats(10, 500), turn_prompt_tokens=st.floats(0, 5000),
    decode_base_s=st.floats(1e-3, 0.1), decode_row_s=st.floats(0, 1e-3), prefill_token_s=st.floats(1e-6, 1e-3),
    turn_overhead_s=st.floats(0, 5), environment_s=st.floats(0, 200), bubble_ratio=st.floats(0, 2),
    kv_token_bytes=st.floats(0, 2e5), bandwidth_bytes_per_s=st.floats(1e9, 1e11),
)  # fmt: skip


@st.composite
def held(draw: st.DrawFn, most: int = 8) -> Topology:
    if draw(st.booleans()):
        return Topology(colocated=draw(st.integers(0, most)))
    return Topology(prefill=draw(st.integers(0, most)), decode=draw(st.integers(0, most)))


def best(profile: RolloutProfile, batch: float, workers: int) -> Decision:
    return decide(profile, batch, workers, Topology(), NONE)


def gain(profile: RolloutProfile, batch: float, workers: int) -> float:
    """Of the best split over colocation."""
    apart = min(makespan_s(profile, batch, t) for t in topologies(workers) if not t.colocated)
    return makespan_s(profile, batch, Topology(colocated=workers)) / apart - 1


@pytest.mark.parametrize(
    ("profile", "batch", "workers", "expected"),
    [(LARGE, 32, 8, 0.096), (LARGE, 48, 8, 0.089), (LARGE, 96, 8, -0.061), (SMALL, 64, 6, 0.134)],
)
def test_gains_of_disaggregation_are_those_expected(
    profile: RolloutProfile, batch: int, workers: int, expected: float
) -> None:
    assert gain(profile, batch, workers) == pytest.approx(expected, abs=0.003)


def test_the_best_topologies_are_those_expected() -> None:
    assert str(best(LARGE, 48, 8).topology) == "4P4D"
    assert str(best(SMALL, 64, 6).topology) == "3P3D"
    assert str(best(LARGE, 96, 8).topology) == "8C"


def test_a_near_tie_may_go_either_way_and_is_one() -> None:
    spans = [makespan_s(SMALL, 64, Topology(prefill=p, decode=5 - p)) for p in (2, 3)]
    assert abs(spans[1] / spans[0] - 1) < 0.005
    assert str(best(SMALL, 64, 5).topology) in ("2P3D", "3P2D")


def test_a_small_gain_is_not_worth_a_new_ratio() -> None:
    assert decide(SMALL, 64, 5, Topology(prefill=3, decode=2)).why == "keep"
    changed = decide(SMALL, 64, 6, Topology(prefill=4, decode=2))
    assert (str(changed.topology), changed.why) == ("3P3D", "ratio")


def test_a_new_mode_must_gain_more_than_a_new_ratio() -> None:
    at = LARGE, 48, 8, Topology(colocated=8)
    assert decide(*at, Hysteresis(0.09, 0.0)).why == "keep"
    assert decide(*at, Hysteresis(0.08, 0.0)).why == "mode"


def test_who_keeps_every_role_has_the_best_split_that_allows_it() -> None:
    """A worker that comes has no role to lose."""
    assert str(decide(SMALL, 64, 6, Topology(prefill=2, decode=3)).topology) == "3P3D"
    assert decide(SMALL, 64, 6, Topology(prefill=2, decode=3)).why == "keep"


@pytest.mark.parametrize("left", [Topology(decode=2), Topology(prefill=3), Topology(prefill=1)])
def test_a_role_without_a_worker_forces_a_switch_whatever_the_thresholds(left: Topology) -> None:
    decision = decide(SMALL, 64, left.workers, left, Hysteresis(0.999, 0.999))
    assert decision.why == "forced"
    assert decision.topology.whole


def test_a_topology_that_no_longer_holds_the_batch_forces_a_switch() -> None:
    tight = replace(SMALL, sequence_kv_bytes=1e9, worker_kv_bytes=20e9)
    assert decide(tight, 64, 5, Topology(prefill=3, decode=2)).why == "forced"
    assert decide(tight, 64, 5, Topology(prefill=1, decode=4), Hysteresis(0.9, 0.9)).why == "keep"


@PROPERTY
@given(profiles, st.integers(1, 256), st.integers(1, 12), held())
def test_the_same_budget_and_profile_give_the_same_decision(
    profile: RolloutProfile, batch: int, workers: int, start: Topology
) -> None:
    first = decide(profile, batch, workers, start)
    again = decide(profile, batch, workers, first.topology)
    assert first.topology.workers == workers
    assert again == Decision(first.topology, first.makespan_s, "keep")


@PROPERTY
@given(profiles, st.integers(1, 256), st.integers(1, 12), held())
def test_a_decision_is_feasible_and_at_most_a_threshold_from_the_best(
    profile: RolloutProfile, batch: int, workers: int, start: Topology
) -> None:
    chosen = decide(profile, batch, workers, start)
    spans = [makespan_s(profile, batch, t) for t in topologies(workers) if feasible(profile, batch, t)]
    assert feasible(profile, batch, chosen.topology)
    assert chosen.makespan_s * (1 - Hysteresis().mode) <= min(spans)
    assert best(profile, batch, workers).makespan_s == min(spans)


@PROPERTY
@given(profiles, st.integers(1, 256), st.integers(1, 12), held())
def test_twice_the_time_doubles_the_makespan_and_changes_no_decision(
    profile: RolloutProfile, batch: int, workers: int, start: Topology
) -> None:
    slow = replace(profile, bandwidth_bytes_per_s=profile.bandwidth_bytes_per_s / 2,
                   **{name: 2 * value for name, value in vars(profile).items() if name.endswith("_s")
                      and name != "bandwidth_bytes_per_s"})  # fmt: skip
    fast, twice = decide(profile, batch, workers, start), decide(slow, batch, workers, start)
    assert twice == Decision(fast.topology, 2 * fast.makespan_s, fast.why)


@pytest.mark.parametrize("profile", PRESETS.values())
def test_at_small_batches_the_turns_overhead_decides_and_at_large_ones_the_transfer(profile: RolloutProfile) -> None:
    bubble = profile.bubble_ratio * profile.turn_tokens * profile.decode_base_s
    assert (gain(profile, 1e-6, 8) > 0) is (profile.turn_overhead_s > bubble)
    assert gain(profile, 1e5, 8) < 0


@PROPERTY
@given(profiles, st.integers(2, 40))
def test_colocated_workers_share_a_large_batch_at_least_as_well_as_any_split(
    profile: RolloutProfile, workers: int
) -> None:
    """The slope in the batch, where a split is balanced at best, and pays for the transfer."""
    batch = 1e9
    slope = profile.turns * (profile.turn_prompt_tokens * profile.prefill_token_s
                             + profile.turn_tokens * profile.decode_row_s) / workers  # fmt: skip
    for prefill in range(1, workers):
        pools = prefill_s(profile, batch, prefill), decode_s(profile, batch, workers - prefill)
        assert max(pools) >= batch * slope * (1 - 1e-9)


def test_turns_without_bubbles_are_those_of_the_decode_pool_alone() -> None:
    plain = replace(SMALL, bubble_ratio=0.0)
    assert decode_s(plain, 64, 4) == pytest.approx(37.2 * 197 * (0.02 + 2.93e-4 * 16))
    assert bubble_ratio(1.0) == 0
    assert bubble_ratio(0.5) == 1


def test_feasible_asks_both_pools() -> None:
    split = Topology(prefill=1, decode=1)
    assert feasible(SMALL, 64, split)
    assert not feasible(replace(SMALL, sequence_kv_bytes=1, worker_kv_bytes=63), 64, split)
    assert feasible(replace(SMALL, sequence_kv_bytes=1, worker_kv_bytes=64), 64, split)
    busy_s = 64 * SMALL.turns * SMALL.turn_prompt_tokens * SMALL.prefill_token_s
    assert feasible(replace(SMALL, prefill_deadline_s=busy_s), 64, split)
    assert not feasible(replace(SMALL, prefill_deadline_s=0.99 * busy_s), 64, split)
    assert feasible(replace(SMALL, prefill_deadline_s=0.0), 64, Topology(colocated=1))
    assert not feasible(SMALL, 64, Topology(prefill=2))
    assert not feasible(SMALL, 64, Topology(1, 1, 1))


def test_topologies_are_all_and_each_once() -> None:
    for workers in range(1, 9):
        found = list(topologies(workers))
        assert len(found) == len({*found}) == workers
        assert all(t.whole and t.workers == workers for t in found)
    assert list(topologies(0)) == []


@PROPERTY
@given(st.floats(0, 1), st.floats(1, 1e3), st.floats(1, 1e3), st.floats(0, 100))
def test_a_gpu_is_borrowed_only_where_that_ends_the_rollout_earlier(
    unfinished: float, dedicated_s: float, full_s: float, toggle_s: float
) -> None:
    with_it, without = unfinished * full_s + toggle_s, unfinished * dedicated_s
    if worth_borrowing(unfinished, dedicated_s, full_s, toggle_s):
        assert with_it < without + 1e-9
    else:
        assert with_it >= without - 1e-9


def test_the_cost_of_a_toggle_follows_what_is_measured() -> None:
    known = LATENCIES["pearl-8b"]
    cost = ToggleCost(known.activation_s + known.return_s, smoothing=0.5)
    assert cost.seconds == pytest.approx(9.44)
    assert cost.observe(6.0, 5.0).seconds == pytest.approx((9.44 + 11) / 2)
    assert cost.observe(6.26, 3.18).seconds == pytest.approx(cost.seconds)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: replace(SMALL, turns=-1.0), lambda: replace(SMALL, turns=math.nan),
        lambda: replace(SMALL, bandwidth_bytes_per_s=0.0), lambda: Hysteresis(0.01, 0.02), lambda: Hysteresis(1, 0),
        lambda: bubble_ratio(0.0), lambda: bubble_ratio(1.1), lambda: ToggleCost(1.0, 0.0),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError):
        wrong()


def test_what_can_not_be_is_refused() -> None:
    with pytest.raises(InvariantError, match="at least one is needed"):
        decide(SMALL, 64, 0, Topology())
    with pytest.raises(InvariantError, match="no rollout with 2P0D"):
        makespan_s(SMALL, 64, Topology(prefill=2))
    with pytest.raises(InvariantError, match="at least 0"):
        Topology(prefill=-1)
