"""PACE's decisions: budget, score, what is rejected, and what the rule remembers by the view alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretto.control.hooks import POOL
from stretto.control.pace import Pace, budget, effective_staleness, mid_rank_percentiles, rejected, smoothed_rate
from stretto.control.pool_watch import WaitingGroup, WaitingTrajectory
from stretto.control.view import View
from stretto.kernel.errors import ConfigError, InvariantError

from .drive import end_step, start_step, submit, view_of


def waiting(id: int, complete: int, versions: Sequence[int], forgetting: float = 0.0) -> WaitingGroup:
    """A ready group of one trajectory that has one token of each of these versions."""
    prefix = sum(v < versions[-1] for v in versions)
    return WaitingGroup(id, complete, id, [WaitingTrajectory(id, len(versions), sum(versions), prefix, forgetting)])


@st.composite
def pools(draw: st.DrawFn, most: int = 12) -> list[WaitingGroup]:
    """Groups of one to three trajectories, complete at versions up to 9."""
    groups = []
    for id in range(draw(st.integers(1, most))):
        complete = draw(st.integers(0, 9))
        members = []
        for k in range(draw(st.integers(1, 3))):
            versions = sorted(draw(st.lists(st.integers(0, complete), min_size=1, max_size=5)))
            one = waiting(10 * id + k, complete, versions, draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])))
            members += one.members
        groups.append(WaitingGroup(id, complete, id, members))
    return groups


# the budget


def test_the_rate_is_the_smoothed_excess_over_the_target() -> None:
    assert smoothed_rate([], 64, 0.3) == 0
    assert smoothed_rate([80], 64, 0.3) == pytest.approx(0.3 * 0.2)
    assert smoothed_rate([80, 64], 64, 0.3) == pytest.approx(0.7 * 0.06)
    assert smoothed_rate([80, 128], 64, 0.3) == pytest.approx(0.7 * 0.06 + 0.3 * 0.5)
    assert smoothed_rate([80, 128], 64, 1.0) == 0.5, "alpha = 1 remembers nothing"


@given(st.lists(st.integers(0, 500), max_size=400), st.sampled_from([0.05, 0.3, 0.9, 1.0]))
def test_what_it_has_forgotten_does_not_show(occupancies: list[int], alpha: float) -> None:
    rate = 0.0
    for n in occupancies:
        rate = (1 - alpha) * rate + alpha * (max(0.0, (n - 100) / n) if n else 0.0)
    assert smoothed_rate(occupancies, 100, alpha) == pytest.approx(rate, abs=1e-15)


def test_a_rate_near_zero_remembers_everything() -> None:
    assert smoothed_rate([200] * 3, 100, 1e-300) == pytest.approx(1.5e-300)


@given(st.integers(0, 1000), st.floats(0, 1), st.integers(1, 100))
def test_a_whole_batch_is_left_whatever_the_rate(n: int, rate: float, batch: int) -> None:
    k = budget(n, rate, batch)
    assert k >= 0
    assert n - k >= min(n, batch)


@given(st.lists(st.integers(0, 64), max_size=50), st.floats(0.01, 1))
def test_nothing_goes_where_the_target_was_never_exceeded(occupancies: list[int], alpha: float) -> None:
    assert smoothed_rate(occupancies, 64, alpha) == 0
    assert all(budget(n, 0.0, 1) == 0 for n in occupancies)


def test_half_a_group_is_rounded_to_even() -> None:
    assert [budget(100, rate, 1) for rate in (0.005, 0.015, 0.025)] == [0, 2, 2]


# the score


def test_equal_values_share_a_rank() -> None:
    assert mid_rank_percentiles([]) == []
    assert mid_rank_percentiles([5.0]) == [0.5]
    assert mid_rank_percentiles([3, 1, 2]) == pytest.approx([5 / 6, 1 / 6, 3 / 6])
    assert mid_rank_percentiles([0, 7, 0, 7]) == [0.25, 0.75, 0.25, 0.75]


@given(st.lists(st.integers(0, 9), min_size=1))
def test_percentiles_lie_strictly_inside_and_average_a_half(values: list[int]) -> None:
    found = mid_rank_percentiles(values)
    assert all(0 < p < 1 for p in found)
    assert sum(found) / len(found) == pytest.approx(0.5)
    order = sorted(values)
    for value, p in zip(values, found, strict=True):
        ranks = [i + 1 for i, other in enumerate(order) if other == value]
        assert p == pytest.approx((sum(ranks) / len(ranks) - 0.5) / len(values))


@given(pools(), st.integers(9, 20))
def test_total_staleness_is_generation_and_waiting_in_integers(pool: list[WaitingGroup], version: int) -> None:
    for group in pool:
        for one in group.members:
            assert one.total(version) == one.tokens * (version - group.complete) + one.generation(group.complete)


def test_waiting_counts_in_full_and_generation_by_its_percentile() -> None:
    assert effective_staleness(3, 2.0, 0.5, 4) == 3 + 2 / 16
    assert effective_staleness(3, 0.0, 0.9, 4) == 3
    assert effective_staleness(3, 2.0, 0.5, 0) == 5
    assert effective_staleness(3, 2.0, 0.99, math.inf) == 3


@given(st.integers(0, 50), st.integers(0, 50), st.floats(0, 50), st.floats(0.001, 0.999), st.floats(0, 50))
def test_it_grows_with_waiting(one: int, other: int, generation: float, percentile: float, gamma: float) -> None:
    less, more = sorted([one, other])
    e = [effective_staleness(w, generation, percentile, gamma) for w in (less, more)]
    assert e[0] <= e[1]
    assert less == more or e[0] < e[1]


# what goes


def test_golden_pool() -> None:
    """Percentiles of forgetting (0, 2, 1, 0) are .25, .875, .625, .25; E at version 6 by hand: 2, 1 + 2 x .875^4 =
    2.172, 1 + 2 x .625^4 = 1.305, 3."""
    pool = [waiting(0, 4, [4, 4]), waiting(1, 5, [1, 3, 5], 2.0), waiting(2, 5, [1, 3, 5], 1.0), waiting(3, 3, [3])]
    assert [rejected(pool, 6, k, 4) for k in range(5)] == [[], [3], [3, 1], [3, 1, 0], [3, 1, 0, 2]]
    assert rejected(pool, 6, 4, 0) == [3, 1, 2, 0], "gamma = 0: by total staleness, 3, 3, 3, 2, the longer wait first"
    assert rejected(pool, 6, 4, math.inf) == [3, 0, 1, 2], "by waiting alone, then by arrival"


def test_a_group_is_the_mean_of_its_members() -> None:
    """Members of E 1 and 1 + 4 p^0 = 5: mean 3, less than one of E 3.5, more than one of 2.5."""
    mixed = WaitingGroup(0, 5, 0, [WaitingTrajectory(0, 1, 5, 0), WaitingTrajectory(1, 1, 1, 1)])
    others = [waiting(1, 5, [2, 3]), waiting(2, 5, [3, 4])]
    assert rejected([others[1], mixed, others[0]], 6, 3, 0) == [1, 0, 2]


@given(pools(), st.integers(9, 12), st.integers(0, 12), st.sampled_from([0, 1, 4, math.inf]), st.randoms())
def test_the_order_of_the_pool_does_not_matter(pool, version, count, gamma, random) -> None:  # type: ignore[no-untyped-def]
    expected = rejected(pool, version, count, gamma)
    assert len(set(expected)) == len(expected) == min(count, len(pool))
    random.shuffle(pool)
    assert rejected(pool, version, count, gamma) == expected


@given(pools(), st.integers(9, 12))
def test_a_large_gamma_counts_waiting_alone(pool: list[WaitingGroup], version: int) -> None:
    by_waiting = [g.id for g in sorted(pool, key=lambda g: (g.complete - version, g.arrival))]
    for gamma in (math.inf, 1e9):
        assert rejected(pool, version, len(pool), gamma) == by_waiting


# the rule


def ready(view: View, group: int, versions: Sequence[int]) -> None:
    """A group of one trajectory with a token of each version is ready."""
    submit(view, group, versions[0])
    runs = [[v, list(versions).count(v)] for v in sorted(set(versions))]
    view({"t": 0.0, "e": "TrajDone", "traj": group, "tokens": len(versions), "versions": runs})
    view({"t": 0.0, "e": "GroupReady", "group": group, "version": view.version, "traj": [group]})


def reject(view: View, groups: Sequence[int]) -> None:
    """They end as the pool rule says."""
    for id in groups:
        view({"t": 0.0, "e": "TrajEnd", "traj": [id], "ending": "rejected", "group": id, "group_over": True})


def full(n: int, batch: int = 2) -> View:
    """A view at version 1, with ``n`` ready groups; half of them, the odd ones, span two versions."""
    view = view_of(lag_bound=99, batch=batch, watch_pool=True)
    for id in range(100, 100 + batch):
        ready(view, id, [0])
    start_step(view, [*range(100, 100 + batch)])
    end_step(view)
    for id in range(n):
        ready(view, id, [0, 1] if id % 2 else [1])
    return view


ALL = Pace(target_occupancy=1, alpha=1)


def test_it_is_registered_and_asks_first_for_what_it_must_know() -> None:
    rule, view = POOL.build("pace", {"target_occupancy": 1, "alpha": 1.0}), full(6)
    assert rule == ALL
    assert ALL.prefixes(view) == [1, 3, 5]
    assert ALL.evict(view) == (), "it decides nothing while these are being scored"
    view({"t": 0.0, "e": "PrefixScored", "version": 1, "traj": [1, 3, 5], "forgetting": [0.0, 3.0, 1.0]})
    assert ALL.prefixes(view) == ()
    assert ALL.evict(view) == [3, 5, 1, 0]
    reject(view, [3, 5, 1, 0])
    assert ALL.evict(view) == (), "once a batch"
    assert list(view.ready) == [2, 4]


def test_scores_are_kept_for_a_version() -> None:
    view = full(6)
    view({"t": 0.0, "e": "PrefixScored", "version": 1, "traj": [1, 3, 5], "forgetting": [0.0, 3.0, 1.0]})
    start_step(view, [0, 2])
    end_step(view, skipped=True)
    ready(view, 7, [0, 1])
    assert ALL.prefixes(view) == [7], "the version is the same"
    view({"t": 0.0, "e": "PrefixScored", "version": 1, "traj": [7], "forgetting": [0.0]})
    start_step(view, [4, 1])
    end_step(view)
    ready(view, 8, [1, 2])
    assert ALL.prefixes(view) == [3, 5, 7, 8], "another version"


def test_what_lands_while_others_are_scored_counts_as_if_nothing_was_forgotten() -> None:
    view = full(4)
    view({"t": 0.0, "e": "PrefixScored", "version": 1, "traj": [1, 3], "forgetting": [1.0, 1.0]})
    ready(view, 5, [0, 0, 0, 1])
    assert ALL.prefixes(view) == ()
    assert ALL.evict(view) == [1, 3, 5]


@pytest.mark.parametrize("gamma", [0.0, math.inf])
def test_nobody_scores_what_would_not_count(gamma: float) -> None:
    assert replace(ALL, gamma=gamma).prefixes(full(6)) == ()


def test_the_occupancy_that_counts_is_the_one_before_anything_was_rejected() -> None:
    view = full(6)
    reject(view, [1, 3])
    assert view.pool.decided == 6
    start_step(view, [0, 2])
    assert view.pool.occupancies == [2, 6]
    assert view.pool.decided is None


def test_it_waits_for_a_batch_and_for_the_step_to_end() -> None:
    view = full(1)
    assert (ALL.prefixes(view), ALL.evict(view)) == ((), ())
    view = full(6)
    start_step(view, [0, 2])
    assert (ALL.prefixes(view), ALL.evict(view)) == ((), ())


def test_others_who_leave_the_pool_are_no_rejections() -> None:
    view = full(3)
    view({"t": 0.0, "e": "TrajEnd", "traj": [1], "ending": "cancelled", "group": 1, "group_over": True})
    assert view.pool.decided is None
    assert list(view.pool.groups) == [0, 2]


def test_who_does_not_ask_for_the_pool_is_told_how_to() -> None:
    with pytest.raises(InvariantError, match="say watches_pool = True in its class"):
        _ = view_of(lag_bound=1, batch=1).pool


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target_occupancy": 0.5}, r"target_occupancy = 0.5: expected a number of batches, 1 or more"),
        ({"target_occupancy": math.inf}, "target_occupancy = inf"),
        ({"alpha": 0.0}, "alpha = 0: expected above 0, at most 1"),
        ({"alpha": 1.5}, r"alpha = 1.5"),
        ({"gamma": -1.0}, "gamma = -1: expected 0 or more"),
        ({"gamma": math.nan}, "gamma = nan"),
        ({"drift": "squared"}, "drift"),
        ({"beta": 1}, "unknown option 'beta'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        POOL.build("pace", options)
