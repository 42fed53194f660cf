from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from stretto.config.learner import LearnerConfig
from stretto.data.schema import Columns
from stretto.learner.collapse import CollapseWatch
from stretto.learner.learner import Learner
from stretto.objectives import get


def test_only_a_row_of_equal_signs_speaks_and_only_once() -> None:
    watch = CollapseWatch(16)
    uniform = math.log(16)
    for entropy, norm in [(1.0, 0.0)] * 4 + [(1.0, 0.1)] + [(uniform, 0.1)] * 4 + [(1.0, 0.1), (math.nan, 0.1)]:
        assert watch.see(entropy, norm) is None
    said = [watch.see(1.0, 0.0) for _ in range(12)]
    assert [s is not None for s in said] == [False] * 4 + [True] + [False] * 7
    assert "no gradient for 5 steps" in str(said[4])
    assert all(watch.see(uniform, 0.1) is None for _ in range(9))


def test_a_uniform_policy_is_named() -> None:
    watch = CollapseWatch(16)
    said = [watch.see(math.log(16) - 5e-4, 0.2) for _ in range(5)]
    assert said[:4] == [None] * 4
    assert "uniform for 5 steps (entropy 2.77" in str(said[4])


@pytest.mark.parametrize("dead", ["uniform", "no gradient"])
def test_the_learner_says_once_that_it_can_not_learn(
    dead: str, model_dir: Path, make_columns: Callable[..., Columns], caplog: pytest.LogCaptureFixture
) -> None:
    learner = Learner(model_dir, LearnerConfig(lr=1e-9), get("tis"), max_steps=10)
    if dead == "uniform":
        with torch.no_grad():
            learner.scorer.model.lm_head.weight.zero_()
    warnings = []
    with caplog.at_level(logging.WARNING, "stretto"):
        for version in range(7):
            columns = make_columns(version=version)
            if dead == "no gradient":
                columns["rewards"] = np.zeros_like(columns["rewards"])
            warnings.append(learner.step(columns).reason)
    assert [w is not None for w in warnings] == [False] * 4 + [True] + [False] * 2
    assert dead in str(warnings[4])
    assert [r.getMessage() for r in caplog.records] == [f"version 5: {warnings[4]}"]
