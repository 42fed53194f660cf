"""Stages that stream rows take what the closed forms say, whichever they are, and train what was generated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stretto.kernel.errors import ConfigError
from stretto.simulation.pipeline import Pipeline, stream
from stretto.simulation.pipeline_law import deferred_s, flow_s, sequential_s, streamed_s

PAPER = (0.365, 0.17, 0.135, 0.33)
seconds = st.integers(1, 64).map(lambda k: k / 64)
stages = st.tuples(seconds, seconds, seconds, seconds)


def test_the_closed_forms_give_the_expected_speedups() -> None:
    alone = sequential_s(PAPER, 0.03)
    assert alone / streamed_s(PAPER, 5, 0.03) == pytest.approx(1.97, abs=0.005)
    assert alone / deferred_s(PAPER, 5, 0.003) == pytest.approx(2.82, abs=0.005)
    assert streamed_s(PAPER, 1, 0.03) == pytest.approx(alone)


def test_a_deferred_iteration_is_longer_than_its_slowest_stage_where_the_flow_binds() -> None:
    balanced = (0.25, 0.25, 0.25, 0.25)
    assert deferred_s(balanced, 2, 0.0) == pytest.approx(flow_s(balanced, 2) / 2) == pytest.approx(0.3125)
    assert deferred_s(balanced, 8, 0.2, load_on_rollout=True) == pytest.approx(0.45)
    with pytest.raises(ConfigError, match="0 micro-batches: expected 1 or more"):
        flow_s(balanced, 0)


@settings(max_examples=15)
@given(stages, st.integers(1, 4), st.integers(0, 16).map(lambda k: k / 64))
def test_streaming_takes_as_long_as_the_closed_form(times: tuple[float, ...], n: int, sync_s: float) -> None:
    run = stream(Pipeline(times, n, sync_s=sync_s, rows=1), 8)  # type: ignore[arg-type]
    assert run.iteration_s() == pytest.approx(streamed_s(times, n, sync_s), abs=1e-9)
    assert run.lag == 0


@pytest.mark.parametrize("times", [PAPER, (0.25, 0.25, 0.25, 0.25)])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("on_rollout", [False, True])
def test_a_deferred_pipeline_settles_on_the_closed_form(times: tuple[float, ...], n: int, on_rollout: bool) -> None:
    p = Pipeline(times, n, load_s=0.2, deferred=True, load_on_rollout=on_rollout, rows=1)  # type: ignore[arg-type]
    assert stream(p, 24).iteration_s() == pytest.approx(deferred_s(times, n, 0.2, load_on_rollout=on_rollout), abs=1e-9)


@settings(max_examples=10)
@given(stages, st.integers(1, 4), st.integers(0, 16).map(lambda k: k / 64), st.booleans())
def test_deferred_loading_takes_as_long_as_the_closed_form(
    times: tuple[float, ...], n: int, load_s: float, on_rollout: bool
) -> None:
    p = Pipeline(times, n, load_s=load_s, deferred=True, load_on_rollout=on_rollout, rows=1)  # type: ignore[arg-type]
    run = stream(p, 64)
    # 48 iterations are averaged; a path through them is cycles of at most this length each and, at both ends, less
    # than one flow and one load, that is two iterations
    longest = deferred_s(times, n, load_s, load_on_rollout=on_rollout)
    assert run.iteration_s() == pytest.approx(longest, abs=4 * longest / 48)
    assert run.lag == 1


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("by_tokens", [False, True])
@pytest.mark.parametrize("kl_in_update", [False, True])
def test_every_sample_trains_once_with_its_own_values_and_the_store_is_empty(
    deferred: bool, by_tokens: bool, kl_in_update: bool
) -> None:
    p = Pipeline(PAPER, 3, load_s=0.01, deferred=deferred, by_tokens=by_tokens, kl_in_update=kl_in_update, rows=4)
    run = stream(p, 10, seed=3)
    assert (run.trained, run.wrong, run.left, len(run.ends_s)) == (120, 0, 0, 10)


def test_what_moves_is_what_the_stages_ask_for() -> None:
    both, less = (stream(Pipeline(PAPER, 2, kl_in_update=late), 6) for late in (False, True))
    assert less.bytes_got < both.bytes_got, (
        "a reward without the penalty doesn't fetch the reference's log-probabilities"
    )


def test_reference_and_reward_work_side_by_side_when_neither_needs_the_other() -> None:
    chain, beside = (stream(Pipeline(PAPER, 1, kl_in_update=late), 8).iteration_s() for late in (False, True))
    assert chain - beside == pytest.approx(min(PAPER[1], PAPER[2]))


def test_twice_the_seconds_are_twice_the_time_and_the_same_samples() -> None:
    once = stream(Pipeline(PAPER, 4, load_s=0.02, deferred=True), 8)
    twice = stream(Pipeline((0.73, 0.34, 0.27, 0.66), 4, load_s=0.04, deferred=True), 8)
    assert twice.ends_s == pytest.approx([2 * end for end in once.ends_s])
    assert (twice.trained, twice.lag, twice.bytes_got) == (once.trained, once.lag, once.bytes_got)
