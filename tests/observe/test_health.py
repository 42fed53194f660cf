"""What went wrong quietly: each finding appears where it should, and only there."""

from __future__ import annotations

from typing import Any

import pytest

from stretto.observe.health import WINDOW, Finding, Health
from stretto.observe.summary import summarize

from .synthetic import synthetic


def row(step: int, reward: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "t": float(step), "reward/trained/mean": reward, **more}


def kinds(health: Health) -> list[str]:
    return [finding.kind for finding in health.findings()]


def steps(rewards: list[float], **more: Any) -> Health:
    health = Health()
    for step, reward in enumerate(rewards):
        health.on_row(row(step, reward, **more))
    return health


def rollouts(good: int, reasons: dict[str, int]) -> Health:
    health = Health()
    for i in range(good):
        health({"e": "TrajDone", "t": 0.0, "traj": i, "reward": 1.0})
    for reason, n in reasons.items():
        for _ in range(n):
            health({"e": "TrajEnd", "t": 0.0, "traj": [0], "ending": "failed", "reason": reason, "tokens": 0})
    return health


def test_more_failed_rewards_than_one_in_twenty_are_a_warning_with_the_commonest_reason() -> None:
    (found,) = rollouts(50, {"the reward is not a finite number": 40, "ValueError: seven": 10}).findings()
    assert found.kind == "failed"
    assert "50% of 100" in found.what
    assert "40 times: the reward is not a finite number" in found.what
    assert kinds(rollouts(96, {"ValueError": 4})) == []
    assert kinds(rollouts(95, {"ValueError": 5})) == []  # exactly the share is not above it
    assert kinds(rollouts(94, {"ValueError": 6})) == ["failed"]


def test_failures_that_were_asked_for_are_none() -> None:
    assert kinds(rollouts(50, {"SimulatedFailure: simulation.failure_probability": 50})) == []


def test_thousands_of_different_reasons_are_counted_in_bounded_memory() -> None:
    health = rollouts(0, {f"KeyError: {i}": 1 for i in range(3000)})
    assert "100% of 3,000" in health.findings()[0].what
    assert len(health._failed._counts) <= 201


@pytest.mark.parametrize("reward", [0.0, 1.0, -2.5])
def test_a_reward_that_never_changes_is_a_warning(reward: float) -> None:
    (found,) = steps([reward] * 40).findings()
    assert (found.kind, found.level) == ("constant", "warning")
    assert f"every reward was {reward:g}, at all 40 steps" in found.what
    assert kinds(steps([reward] * 5)) == []  # too early to tell


def test_a_reward_that_falls_is_a_warning_and_noise_is_not() -> None:
    noise = [0.02 * ((7 * i) % 5 - 2) for i in range(60)]
    assert kinds(steps([0.5 + n for n in noise])) == []
    assert kinds(steps([0.3 + 0.01 * i + n for i, n in enumerate(noise)])) == []
    assert kinds(steps([0.7 - 0.01 * i + n for i, n in enumerate(noise)])) == ["fell"]
    assert kinds(steps([-0.2 - 0.01 * i + n for i, n in enumerate(noise)])) == ["fell"]


def test_equal_rewards_in_every_group_mean_lost_variety_or_nothing_left_to_learn() -> None:
    flat = {"group/zero_variance_fraction": 1.0}
    up = [0.2 + 0.02 * i for i in range(40)]
    assert kinds(steps([*up, *[1.0] * WINDOW], **flat)) == ["saturated"]
    # a mean below the best one
    assert "flat" in kinds(steps([*[0.5, 0.9] * 20, *[0.7] * WINDOW], **flat))


def test_accuracy_that_falls_is_a_warning_and_one_that_does_not_rise_a_note() -> None:
    def of(before: float, after: float, n: int = 500, count: int = 60) -> list[str]:
        health = Health()
        for accuracy in (before, after):
            health({"e": "Eval", "t": 0.0, "version": 0, "accuracy": accuracy, "n": n})
            for step in range(count // 2):
                health.on_row(row(step, 0.5 + 0.01 * (step % 3)))
        return kinds(health)

    assert of(0.5, 0.9) == []
    assert of(0.5, 0.2) == ["accuracy"]
    assert of(0.5, 0.51) == ["no-rise"]
    assert of(1.0, 1.0) == []
    assert of(0.5, 0.51, count=20) == []


def test_a_warning_is_told_once_and_faults_at_the_end_only() -> None:
    health = rollouts(50, {"ValueError": 50})
    health({"e": "Fault", "t": 0.0, "where": "learner", "what": "no gradient"})
    assert [f.kind for f in health.fresh()] == ["failed"]
    assert health.fresh() == []
    assert kinds(health) == ["failed", "faults"]
    assert "learner: no gradient" in health.findings()[1].what


def test_cut_answers_skipped_updates_and_rejected_tokens_are_warnings() -> None:
    health = steps([0.4 + 0.01 * (i % 3) for i in range(30)], truncated=0.8, **{"ledger/rejected_token_share": 0.2})
    for skipped in (True, False, True):
        health({"e": "StepEnd", "t": 0.0, "skipped": skipped})
    assert sorted(kinds(health)) == ["rejected", "skipped", "truncated"]


def test_an_engine_that_samples_from_another_distribution_is_a_warning() -> None:
    def of(*kl: float) -> list[Finding]:
        health = Health()
        for step, value in enumerate(kl):
            health.on_row(row(step, 0.1 * (step % 7), **{"mismatch/kl": value, "ratio/mean@0": 0.83}))
        return health.findings()

    (found,) = of(0.3, 0.2, 0.25)
    assert (found.kind, found.level) == ("mismatch", "warning")
    assert "the ratio is 0.83 on average for 1, mismatch/kl 0.25 nats" in found.what
    assert of(0.5, 1e-9, 1e-9) == []  # one odd step
    assert of(0.01) == of() == []


def test_a_healthy_run_has_no_findings_and_its_summary_says_so() -> None:
    assert [w for w in summarize(synthetic(steps=30, seed=1))["warnings"] if w["kind"] != "faults"] == []
    assert Finding("a", "warning", "b", "c").line() == "warning: b. c"


def test_a_warning_that_no_longer_holds_is_told_at_the_end_as_of_the_run() -> None:
    health = Health()
    for step in range(15):
        health.on_row({"step": step, "reward/trained/mean": 0.0})
    assert [f.kind for f in health.fresh()] == ["constant"]
    for step in range(15, 40):
        health.on_row({"step": step, "reward/trained/mean": 0.4 + step % 2 * 0.1})
    (told,) = (f for f in health.data() if f["kind"] == "constant")
    assert told["level"] == "note"
    assert told["what"].startswith("during the run: every reward was 0")


def test_a_fall_within_the_noise_of_small_steps_is_no_collapse() -> None:
    def health_of(rewards: list[float]) -> Health:
        health = Health()
        for step, reward in enumerate(rewards):
            health.on_row({"step": step, "reward/trained/mean": reward})
        return health

    rise = [0.0] * 10
    noisy = health_of(rise + [1.0, 0.0, 1.0, 0.0, 1.0] * 2 + [0.0, 1.0, 0.0, 0.0, 0.0] * 2 + [1.0, 0.0] * 10)
    assert noisy.collapse is None
    fell = health_of(rise + [0.8] * 30 + [0.1] * 30)
    assert fell.collapse in range(41, 51)
    assert [f.kind for f in fell.findings() if f.level == "warning"] == ["collapse"]
