"""PACE's experiment, and the pool dynamics once more, by a simulation that shares nothing with the loop."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest

from stretto.papers import pace
from stretto.papers.base import Settings
from stretto.papers.pace_setups import crowded

FEW = 40


def test_the_pool_is_held_where_it_should_be_and_unfiltered_it_is_not() -> None:
    fixed = pace.simulate(*crowded(1.2, 1.0, 4.0, "span", 5, FEW))
    unfiltered = pace.simulate(*crowded(1.2, None, 4.0, "span", 5, FEW))
    occupancy, made = fixed.ready()
    assert occupancy - made == pytest.approx(0, abs=4)
    assert not sum(unfiltered.rejected)
    assert unfiltered.occupancy[-1] > fixed.occupancy[-1] + 4 * FEW


def test_the_decisions_by_hand() -> None:
    assert all(check.passed for check in pace._by_hand())


@pytest.mark.slow
def test_the_conditions_hold_for_other_seeds() -> None:
    assert pace.reproduce(Settings(quick=True, first_seed=50)).passed


@pytest.mark.slow
@pytest.mark.parametrize("arm", pace.ARMS)
def test_a_simulation_of_its_own_finds_the_same_length_ratios(arm: str) -> None:
    gamma, forgetting = pace.ARMS[arm]
    ours = pace.simulate(*crowded(1.6, 3.0, gamma, forgetting, 0, 120)).length_ratio()
    assert rederived(gamma, forgetting, 120) == pytest.approx(ours, abs=0.05)


def rederived(gamma: float, forgetting: str, steps: int) -> float:
    """Mean length trained / made at lambda / B = 1.6, n* = 3 B: continuous lengths of mean 1, unit speed."""
    rng, batch, period = np.random.default_rng(0), 64, 0.8

    def length() -> float:
        return float(np.exp(0.9 * rng.standard_normal() - 0.405))

    slots = sorted((n, 0.0, n) for n in (length() for _ in range(128)))  # end, start, length
    pool: list[tuple[int, float, float, float]] = []  # complete, generation staleness, forgetting, length
    trained: list[tuple[int, float]] = []
    made: list[tuple[int, float]] = []
    u, now, rate = 0, 0.0, 0.0
    loads = [0.0]

    def land(until: float) -> None:
        while slots[0][0] <= until:
            end, start, n = heapq.heappop(slots)
            stale = sum(max(0.0, min(end, after) - max(start, t)) * (u - v)
                        for v, (t, after) in enumerate(zip(loads, [*loads[1:], math.inf], strict=True)))  # fmt: skip
            span = u - (sum(t <= start for t in loads) - 1)
            pool.append((u, stale / n, float(span) if forgetting == "span" else rng.random() * (span > 0), n))
            made.append((u, n))
            again = length()
            heapq.heappush(slots, (end + again, end, again))

    while u < steps:
        while len(pool) < batch:
            now = max(now, slots[0][0])
            land(now)
        n = len(pool)
        rate = 0.7 * rate + 0.3 * max(0.0, (n - 3 * batch) / n)
        f = np.array([entry[2] for entry in pool])
        p = ((f[:, None] > f).sum(1) + (f[:, None] >= f).sum(1)) / (2 * n)
        e = np.array([u - entry[0] + entry[1] * p[i] ** gamma for i, entry in enumerate(pool)])
        keep = set(sorted(range(n), key=lambda i: (-e[i], pool[i][0], i))[max(0, min(round(rate * n), n - batch)) :])
        rest = [entry for i, entry in enumerate(pool) if i in keep]
        trained += [(u, entry[3]) for entry in rest[:batch]]
        pool[:] = rest[batch:]
        now += period
        land(now)
        u += 1
        loads.append(now)
    late = steps // 5
    return float(np.mean([n for v, n in trained if v >= late]) / np.mean([n for v, n in made if v >= late]))
