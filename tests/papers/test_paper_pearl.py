"""PEARL's replay, as ``stretto reproduce pearl`` runs it."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.figure import Figure

from stretto.control.pearl import Hysteresis
from stretto.papers import pearl
from stretto.papers.base import Settings
from stretto.papers.pearl_replay import NONE, PREEMPTIBLE, RESERVED, budgets, mean_rate, replay, workload


def test_the_segments_gain_what_the_composition_gives() -> None:
    ratios = pearl.replayed_ratios(pearl.TRAIN_S)
    assert ratios[1] == pytest.approx((1.16, 1.95), abs=0.02)
    assert ratios[2][0] == pytest.approx(1.29, abs=0.02)
    assert ratios[2][0] > ratios[3][0] > ratios[1][0]


def test_nothing_is_borrowed_where_training_takes_longer_than_the_rollout() -> None:
    at = workload("pearl-8b", 64, 400.0)
    assert at.period_s(300.0, 200.0) == (400.0, False)
    assert at.period_s(440.0, 200.0) == (pytest.approx(400 + 9.44 + 0.1 / 1.1 * 200), True)
    assert at.period_s(440.0, 440.0) == (440.0, False)


def test_rates_of_neighbouring_worker_counts_are_averaged() -> None:
    assert mean_rate(lambda workers: 1 / workers, 6.8) == pytest.approx(6.8)
    assert mean_rate({6: 2.0}.__getitem__, 6.0) == 0.5


def test_a_course_covers_its_hours_keeps_what_is_reserved_and_is_the_seeds_alone() -> None:
    course = budgets(3, 1000.0)
    ends = [end_s for end_s, _ in course]
    assert ends == sorted(ends)
    assert ends[-1] == 4 * 3600
    assert all({0, 1, 2, 3} <= gpus <= {*range(2 * (RESERVED + PREEMPTIBLE))} for _, gpus in course)
    assert all(len(gpus ^ other) == 2 for (_, gpus), (_, other) in itertools.pairwise(course))
    assert course == budgets(3, 1000.0)
    assert course != budgets(4, 1000.0)


def test_a_random_course_is_never_worse_than_colocated_and_breaks_no_invariant() -> None:
    free, held = replay(12, NONE), replay(12, Hysteresis())
    assert free.least >= 1 - 1e-12
    assert held.least >= 1 - Hysteresis().mode
    assert free.broken == held.broken == ()
    assert 0 < free.borrowed < free.steps
    assert free == replay(12, NONE)


@pytest.mark.slow
def test_the_experiment_passes_and_says_what_the_presets_do_not_give() -> None:
    outcome = pearl.reproduce(Settings(quick=True, first_seed=40))
    assert not outcome.failed, [check for check in outcome.checks if check.passed is False]
    absent = [check.name for check in outcome.checks if check.absent]
    assert absent == ["split on 4 GPUs: gain", "10 GPUs and overlap: best split"]


def test_the_figure_is_drawn() -> None:
    figure = Figure(figsize=(9, 4))
    pearl._plot(figure)
    assert all(axis.has_data() for axis in figure.get_axes())
