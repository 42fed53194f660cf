"""When the first batch will be there, from the first seconds."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.observe.forecast import FirstBatch, clock, lifetimes


def forecast(**start: Any) -> FirstBatch:
    found = FirstBatch(max_new_tokens=100)
    found({"e": "RunStart", "t": 0.0, "prompts_per_step": 8, "group_size": 4, "max_num_seqs": 16, "engines": 1,
           "lag_bound": 2, **start})  # fmt: skip
    come_up(found)
    assert found.text(1.0) is None  # nothing was submitted: the workers come up
    for group in range(24):
        found({"e": "Submitted", "t": 10.0, "group": group, "traj": [4 * group + k for k in range(4)]})
    return found


def come_up(found: FirstBatch) -> None:
    found({"e": "WorkerUp", "t": 0.0, "worker": "w", "role": "engine"})
    found({"e": "WorkerUp", "t": 0.0, "worker": "learner", "role": "learner"})


def done(found: FirstBatch, n: int, tokens: int, first: int = 0, reward: float | None = 1.0) -> None:
    """Answers ``first`` and following, four to a group, have ended."""
    for i in range(first, first + n):
        found({"e": "TrajDone", "t": 0.0, "traj": i, "group": i // 4, "tokens": tokens, "reward": reward})
        if reward is None:
            found({"e": "TrajEnd", "t": 0.0, "traj": [i], "ending": "failed"})


def busy(found: FirstBatch, tokens: int) -> None:
    found({"e": "Busy", "t": 0.0, "worker": "w", "tokens": tokens})


def test_before_any_answer_the_longest_possible_ones_bound_the_time() -> None:
    found = forecast()
    assert found.left_s(12.0) is None
    busy(found, 200)  # in 2 s: 100 tokens/s; 32 answers of 100 tokens, of which 200 are there
    assert found.left_s(12.0) == pytest.approx(30.0)
    assert "complete in at most 30s" in str(found.text(12.0))
    busy(found, 100)
    said = str(found.text(40.0))
    assert "lower prompts_per_step (8), group_size (4) or sampling.max_new_tokens (100)" in said
    assert "the learner's step comes after" in said


def test_answers_that_are_there_tell_how_long_one_is() -> None:
    found = forecast(prompts_per_step=16)
    busy(found, 400)
    done(found, 16, 25)
    assert found.left_s(14.0) == pytest.approx((64 * 25 - 400) / 100)
    assert "16 of 64 answers, 100 tokens/s, complete in about 12s, at most 48s" in str(found.text(14.0))
    done(found, 16, 25, first=16)
    assert "at most" not in str(found.text(14.0))  # half have ended


def test_those_that_run_count_as_the_short_ones_end_first() -> None:
    found = forecast(max_num_seqs=32)
    busy(found, 32 * 10)
    done(found, 4, 10)  # the others have 10 tokens, too, and go on
    assert found.left_s(20.0) == pytest.approx(32 * 80 / 32)  # of 320 tokens four answers came
    assert lifetimes([10] * 4, [10.0] * 28, 30)(0.0) == pytest.approx(10 + 28 / 32 * 20)  # none is longer than that
    assert lifetimes([10, 20], [], 100)(0.0) == pytest.approx(15)


def test_with_many_slots_later_batches_share_the_engine() -> None:
    found = forecast(max_num_seqs=64)
    busy(found, 200)
    assert found.left_s(12.0) == pytest.approx((64 * 100 - 200) / 100)


def test_while_answers_are_missing_there_is_an_estimate_and_what_to_lower() -> None:
    found = forecast()
    busy(found, 3200)
    done(found, 31, 30)
    assert found.left_s(70.0)
    assert "31 of 32 answers" in str(found.text(70.0))
    assert "complete in about" in str(found.text(70.0))
    assert "lower prompts_per_step" in str(found.text(75.0))


def test_without_a_token_after_a_minute_it_says_what_to_lower() -> None:
    assert "no token yet; " in str(forecast().text(75.0))


def test_the_learners_own_work_and_evaluations_do_not_count() -> None:
    found = FirstBatch(100)
    come_up(found)
    busy(found, 5000)  # an evaluation before the start
    found({"e": "RunStart", "t": 0.0, "prompts_per_step": 8, "group_size": 4, "max_num_seqs": 16, "engines": 1,
           "lag_bound": 0})  # fmt: skip
    found({"e": "Submitted", "t": 10.0, "traj": [0]})
    found({"e": "Busy", "t": 0.0, "worker": "learner", "tokens": 7})
    assert found.left_s(12.0) is None


def test_what_failed_is_no_answer_and_later_batches_are_not_the_first() -> None:
    found = forecast()
    busy(found, 1000)
    done(found, 30, 10, reward=None)
    assert "0 of 32 answers, 30 failed" in str(found.text(12.0))
    done(found, 60, 10, first=32)
    assert "32 of 32 answers, 30 failed" in str(found.text(12.0))
    assert "complete" not in str(found.text(12.0))


def test_of_the_answers_that_are_missing_as_many_fail() -> None:
    found = forecast()
    busy(found, 320)
    done(found, 8, 20)
    done(found, 8, 20, first=8, reward=None)
    done(found, 8, 20, first=16)
    assert found.left_s(20.0) == pytest.approx((32 - 16) * 1.5 * 20 / (480 / 10))  # one of three fails
    assert "16 of 32 answers, 8 failed, 48 tokens/s, complete in about 10s if no larger share fails" in str(
        found.text(20.0)
    )


def test_when_all_answers_fail_there_is_no_estimate() -> None:
    found = forecast()
    busy(found, 1000)
    done(found, 30, 10, reward=None)
    found({"e": "TrajEnd", "t": 0.0, "traj": [30, 31], "ending": "failed", "group": 7, "group_over": True})
    assert found.left_s(12.0) is found.most_s(12.0) is None
    said = "the first batch: 0 of 32 answers, 32 failed: none that ended has a valid reward"
    assert str(found.text(12.0)).startswith(said)


def test_a_group_that_is_ready_with_fewer_answers_needs_no_more() -> None:
    found = forecast()
    busy(found, 100)
    done(found, 3, 10)
    found({"e": "GroupReady", "t": 0.0, "group": 0, "traj": [0, 1, 2]})
    assert "3 of 31 answers" in str(found.text(12.0))
    found({"e": "TrajEnd", "t": 0.0, "traj": [0, 1, 2], "ending": "rejected", "group": 0, "group_over": True})
    assert "0 of 32 answers" in str(found.text(12.0))


def test_the_first_step_ends_it() -> None:
    found = forecast()
    found({"e": "StepStart", "t": 20.0, "tokens": 3200})
    assert "trains the first batch (3,200 tokens)" in str(found.text(21.0))
    found({"e": "StepEnd", "t": 22.0})
    assert found.text(23.0) is None


def test_clock() -> None:
    assert [clock(s) for s in (None, 12.7, 185, 7800)] == ["-", "12s", "3m05s", "2h10m"]
