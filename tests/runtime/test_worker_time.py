"""A worker's durations find their place on the loop's clock, whatever its own clock says."""

from __future__ import annotations

import random

import pytest

from stretto.runtime.workers.worker_time import WorkerTime


@pytest.mark.parametrize("start", [-1e6, 0.0, 123.456])
def test_the_quickest_message_says_best_when_a_worker_began(start: float) -> None:
    rng, time, said = random.Random(0), WorkerTime(), 0.0
    for _ in range(200):
        said += rng.expovariate(2)
        time.heard(start + said + rng.uniform(0.001, 0.3), said)
    assert 0.0 <= time.at(said) - (start + said) < 0.02


def test_nothing_lies_after_the_moment_at_which_it_was_told() -> None:
    rng, time = random.Random(1), WorkerTime()
    for i in range(200):
        said = 0.5 * i
        now = 7.0 + said + rng.choice([0.0001, 0.1, 5.0])
        time.heard(now, said)
        assert time.at(said) <= now


def test_a_clock_that_runs_slowly_is_followed() -> None:
    time = WorkerTime()
    for i in range(100_000):
        now = 10.0 * i
        time.heard(now + 0.01, now * (1 - 5e-5))
    assert abs(time.at(now * (1 - 5e-5)) - now) < 0.02


def test_spans_of_one_worker_never_overlap_however_late_their_messages_are() -> None:
    rng, time, until = random.Random(2), WorkerTime(), 0.0
    for i in range(300):
        now = 5.0 + i + 1 + rng.uniform(0, 0.4)
        time.heard(now, i + 1)
        began, ended = time.span(i, i + 1)
        assert until <= began <= ended <= now
        assert ended - began > 0.5
        until = ended
