"""The compiled loop: bit-equal to plain Python, and the same whatever threads, groups and checkpoints do."""

from __future__ import annotations

import signal
from typing import Any

import numba
import numpy as np
import pytest

from stretto.kernel.errors import ConfigError
from stretto.tabular.mdp import MDP
from stretto.tabular.td.kernel import first_passage, td
from stretto.tabular.td.moments import moments
from stretto.tabular.td.process import RewardProcess
from stretto.tabular.td.reference import td_path
from stretto.tabular.td.steps import constant, decreasing
from stretto.tabular.td.three_state import three_state

CHAIN = three_state(8, 32, 0.1, skew=0.3)


def wide(states: int = 5) -> RewardProcess:
    rng = np.random.default_rng(4)
    transitions = rng.dirichlet(np.full(states, 0.4), size=states)
    return RewardProcess(
        transitions, rng.normal(size=(states, states)), rng.uniform(0.5, 0.95, states), np.full(5, 0.2)
    )


@pytest.mark.parametrize("process", [CHAIN, wide()], ids=["three states", "rewards by the next state"])
@pytest.mark.parametrize("steps", [constant(0.1), decreasing(20.0)], ids=["constant", "decreasing"])
def test_it_agrees_with_plain_python_bit_for_bit(process: RewardProcess, steps) -> None:  # type: ignore[no-untyped-def]
    marks = [1, 2, 17, 400]
    run = td(process, steps, [0, 5, 6, 7, 9], marks, values=0.25)
    truth = process.values()
    for i, seed in enumerate([0, 5, 6, 7, 9]):
        _, path = td_path(process, steps, seed, 400, values=0.25)
        np.testing.assert_array_equal(run.values[i], path[marks])
        errors = np.abs(path - truth).max(1)
        for c, (begin, end) in enumerate(zip([0, *marks], marks, strict=False)):
            assert run.worst[i, c] == errors[begin : end + 1].max()
    np.testing.assert_array_equal(run.errors(truth), np.abs(run.values - truth).max(-1))


def test_errors_are_measured_from_any_truth() -> None:
    run = td(CHAIN, constant(0.1), [3], np.arange(1, 200), truth=np.zeros(3))
    np.testing.assert_array_equal(
        run.worst[0, 1:], np.maximum(*(np.abs(run.values[0, k]).max(1) for k in (np.s_[1:], np.s_[:-1])))
    )


def test_a_transition_changes_the_visited_state_only() -> None:
    states, path = td_path(wide(), constant(0.3), 1, 300)
    for t in range(300):
        assert set(np.flatnonzero(path[t + 1] != path[t])) <= {states[t]}
    assert len(set(states)) == 5


def test_neither_threads_nor_company_nor_checkpoints_change_a_seed() -> None:
    usual = td(CHAIN, decreasing(80), np.arange(9), [100, 5000])
    threads = numba.get_num_threads()
    try:
        numba.set_num_threads(1)
        single = td(CHAIN, decreasing(80), np.arange(9), [100, 5000])
    finally:
        numba.set_num_threads(threads)
    np.testing.assert_array_equal(usual.values, single.values)
    np.testing.assert_array_equal(usual.worst, single.worst)
    alone = td(CHAIN, decreasing(80), [7], np.arange(1, 5001))
    np.testing.assert_array_equal(alone.values[0, [99, 4999]], usual.values[7])
    assert usual.worst[7, 1] == np.abs(alone.values[0, 99:] - CHAIN.values()).max()


@pytest.mark.parametrize("gamma", [0.5, 0.9, 0.99])
def test_each_lap_of_a_deterministic_cycle_shrinks_the_error_by_gamma(gamma: float) -> None:
    size = 6
    cycle = RewardProcess(np.roll(np.eye(size), 1, axis=1), np.arange(size) % 3, gamma, start=2)
    run = td(cycle, constant(1.0), [0], size * np.arange(1, 9), values=4.0)
    errors = np.append(np.abs(4.0 - cycle.values()).max(), run.errors(cycle.values())[0])
    assert (errors[1:] <= gamma * errors[:-1] * (1 + 1e-12) + 1e-13 * size / (1 - gamma)).all()


def test_first_passage_finds_what_a_run_shows() -> None:
    steps = constant(0.02)
    found = first_passage(CHAIN, steps, np.arange(6), eps=0.8, every=50, limit=20_000)
    errors = td(CHAIN, steps, np.arange(6), np.arange(50, 20_001, 50)).errors(CHAIN.values())
    for time, path in zip(found, errors, strict=True):
        assert time == 50 * (1 + np.argmax(path <= 0.8))
    assert (first_passage(CHAIN, steps, [0, 1], eps=0.8, every=50, limit=50) == -1).all()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: td(CHAIN, constant(0.1), [0], [0, 5]), "td: checkpoints"),
        (lambda: td(CHAIN, constant(0.1), [0], [5, 5]), "td: checkpoints"),
        (lambda: td(CHAIN, constant(0.1), [0], [1.5]), "td: checkpoints"),
        (lambda: td(CHAIN, constant(0.1), [0], [[1], [2, 3]]), "td: checkpoints"),
        (lambda: td(CHAIN, constant(0.1), [0], [2**63]), "td: checkpoints"),
        (lambda: td(CHAIN, constant(0.1), [0], np.array([5, 3], np.uint64)), "td: checkpoints"),
        (lambda: td(CHAIN, 0.1, [0], [5]), "td: steps"),  # type: ignore[arg-type]
        (lambda: td(CHAIN, constant(0.1), [0], [5]).errors(np.zeros(2)), "Run.errors: truth"),
        (lambda: td(CHAIN, constant(0.1), [], [5]), "td: seeds"),
        (lambda: td(CHAIN, constant(0.1), [3, 3], [5]), "td: seeds"),
        (lambda: td(CHAIN, constant(0.1), [0], [5], values=[0, 0]), "td: values"),
        (lambda: td(CHAIN, constant(0.1), [0], [5], values=np.nan), "td: values"),
        (lambda: td(CHAIN, constant(0.1), [0], [5], truth=[0.0]), "td: truth"),
        (lambda: first_passage(CHAIN, constant(0.1), [0], 0, 10, 100), "first_passage: eps"),
        (lambda: first_passage(CHAIN, constant(0.1), [0], 0.5, 10, 5), "first_passage: limit"),
        (lambda: first_passage(CHAIN, constant(0.1), [0], 0.5, 0, 5), "first_passage: every"),
        (lambda: first_passage(CHAIN, constant(0.1), [0], 0.5, 10, 10**30), "first_passage: limit"),
        (lambda: td_path(CHAIN, constant(0.1), 0, 0), "td_path: updates"),
        (lambda: td_path(CHAIN, constant(0.1), -1, 5), "td_path: seed"),
    ],
)
def test_bad_arguments_are_named(call, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match=said):
        call()


def test_an_mdp_in_the_place_of_a_process_is_refused() -> None:
    mdp = MDP(np.full((2, 1, 2), 0.5), np.zeros((2, 1)), 0.5)
    with pytest.raises(ConfigError, match="td: process is a MDP; give it a RewardProcess"):
        td(mdp, constant(0.1), [0], [1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="first_passage: process is a MDP"):
        first_passage(mdp, constant(0.1), [0], 0.1, 1, 1)  # type: ignore[arg-type]


def test_ctrl_c_in_the_middle_is_a_keyboard_interrupt() -> None:
    """A compiled loop that returns two arrays would bring the process down instead."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    td(CHAIN, constant(0.1), range(8), [1])  # compiled
    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        for call in (
            lambda: td(CHAIN, constant(0.1), range(8), [5_000_000]),
            lambda: moments(CHAIN, constant(0.1), 1_000_000),
        ):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, usual)
