"""When the first batch will be there, from the first seconds."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.observe.forecast import FirstBatch, clock


def forecast(**start: Any) -> FirstBatch:
    found = FirstBatch(max_new_tokens=100)
    found({"e": "RunStart", "t": 0.0, "prompts_per_step": 8, "group_size": 4, "max_num_seqs": 16, "engines": 1,
           "lag_bound": 2, **start})  # fmt: skip
    assert found.text(1.0) is None  # nothing was submitted: the workers come up
    found({"e": "Submitted", "t": 10.0})
    return found


def busy(found: FirstBatch, tokens: int) -> None:
    found({"e": "Busy", "t": 0.0, "worker": "engine-0", "tokens": tokens})


def test_before_any_answer_the_longest_possible_ones_bound_the_time() -> None:
    found = forecast()
    assert found.left_s(12.0) is None
    busy(found, 200)  # in 2 s: 100 tokens/s; 32 answers of 100 tokens, of which 200 are there
    assert found.left_s(12.0) == pytest.approx(30.0)
    assert "at most 30s" in str(found.text(12.0))
    busy(found, 100)
    assert "lower prompts_per_step (8), group_size (4) or sampling.max_new_tokens (100)" in str(found.text(40.0))


def test_answers_that_are_there_tell_how_long_one_is() -> None:
    found = forecast()
    busy(found, 400)
    for _ in range(8):
        found({"e": "TrajDone", "t": 0.0, "tokens": 25})
    assert found.left_s(14.0) == pytest.approx((32 * 25 - 400) / 100)
    assert "8 of 32 answers, 100 tokens/s, complete in 4s" in str(found.text(14.0))


def test_with_many_slots_later_batches_share_the_engine() -> None:
    found = forecast(max_num_seqs=64)
    busy(found, 200)
    assert found.left_s(12.0) == pytest.approx((64 * 100 - 200) / 100)


def test_the_learners_own_work_and_evaluations_do_not_count() -> None:
    found = FirstBatch(100)
    busy(found, 5000)  # an evaluation before the start
    found({"e": "RunStart", "t": 0.0, "prompts_per_step": 8, "group_size": 4, "max_num_seqs": 16, "engines": 1,
           "lag_bound": 0})  # fmt: skip
    found({"e": "Submitted", "t": 10.0})
    found({"e": "Busy", "t": 0.0, "worker": "learner", "tokens": 7})
    assert found.left_s(12.0) is None


def test_failed_answers_are_said_and_no_end_is_promised_that_is_past() -> None:
    found = forecast()
    found({"e": "TrajEnd", "t": 11.0, "ending": "failed", "traj": list(range(30))})
    busy(found, 3300)  # what 32 answers may take at most
    assert found.text(12.0) == "the first batch: 0 of 32 answers, 30 failed, 1,650 tokens/s"


def test_the_first_step_ends_it() -> None:
    found = forecast()
    found({"e": "StepStart", "t": 20.0, "tokens": 3200})
    assert "trains the first batch (3,200 tokens)" in str(found.text(21.0))
    found({"e": "StepEnd", "t": 22.0})
    assert found.text(23.0) is None


def test_clock() -> None:
    assert [clock(s) for s in (None, 12.7, 185, 7800)] == ["-", "12s", "3m05s", "2h10m"]
