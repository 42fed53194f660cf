"""What counts as a success in an evaluation, and how fractional rewards are told."""

from __future__ import annotations

import pytest

from stretto.config.load import apply_overrides, validate
from stretto.kernel.errors import ConfigError
from stretto.observe.summary import summarize
from stretto.runtime.evaluate import succeeded


@pytest.mark.parametrize(
    ("reward", "threshold", "success"),
    [
        (1.0, 1.0, True), (1.0 - 1e-7, 1.0, True), (0.999, 1.0, False), (0.5, 0.5, True), (0.3 + 0.6, 0.9, True),
        (0.49, 0.5, False), (2.0, 2.5, False), (-0.5, -0.5, True), (None, 0.0, False), (0.0, 0.0, True),
    ],
)  # fmt: skip
def test_success_is_to_reach_the_threshold(reward: float | None, threshold: float, success: bool) -> None:
    assert succeeded(reward, threshold) is success


def test_the_threshold_is_a_number() -> None:
    assert validate(apply_overrides({}, ["eval.success_threshold=0.5"])).eval.success_threshold == 0.5
    with pytest.raises(ConfigError, match="success_threshold"):
        validate(apply_overrides({}, ["eval.success_threshold=nan"]))


def test_the_mean_reward_is_told_beside_accuracy() -> None:
    events = [{"e": "Eval", "t": 1.0 + k, "start": k, "version": k, "n": 4, "accuracy": 0.25 * k,
               "reward": 0.5 + 0.1 * k} for k in range(2)]  # fmt: skip
    figures = {"accuracy": 0.25, "initial_accuracy": 0.0, "mean": 0.6, "initial_mean": 0.5, "count": 4,
               "evaluations": 2}  # fmt: skip
    assert summarize(events)["eval"] == figures
