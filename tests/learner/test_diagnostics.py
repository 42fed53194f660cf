"""Diagnostics of a step, whatever the objective."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tests.learner.conftest import make_columns

from stretto.config.learner import LearnerConfig
from stretto.data.batch import TokenBatch
from stretto.learner.diagnostics import Diagnostics
from stretto.learner.learner import Learner
from stretto.learner.result import ForwardBackwardResult, Losses
from stretto.objectives import get
from stretto.objectives.metrics import Metrics


def passed(logp: torch.Tensor) -> ForwardBackwardResult[Metrics]:
    """What a pass over these rows tells."""
    grad = None if logp.grad is None else logp.grad.flatten().numpy()
    return ForwardBackwardResult(Losses(0.0, 0.0, 0.0), Metrics(), logp.detach().flatten().numpy(), grad)


def noted(
    staleness: list[int], log_ratios: list[float], advantages: list[float], objective: str = "ppo"
) -> dict[str, float]:
    n = len(staleness)
    logp = torch.full((n, 1), -1.0, dtype=torch.float64, requires_grad=True)
    behavior = logp.detach() - torch.tensor(log_ratios, dtype=torch.float64)[:, None]
    versions = 100 - torch.tensor(staleness)[:, None]
    batch = TokenBatch(mask=torch.ones(n, 1, dtype=torch.bool), logp_behavior=behavior, versions=versions, version=100)
    a = torch.tensor(advantages, dtype=torch.float64)[:, None]
    diagnostics = Diagnostics(batch, a)
    get(objective)(batch, logp, advantages=a).total.backward()
    diagnostics.note(torch.arange(n), passed(logp))
    return diagnostics.report()


def test_quantiles_are_told_by_staleness() -> None:
    report = noted([0, 0, 2, 3, 70], [0.1, 0.3, 1.0, 3.0, -2.0], [1.0] * 5)
    assert report["log_ratio/q50"] == pytest.approx(0.3, abs=1e-6)
    assert report["log_ratio/q50@0"] == pytest.approx(0.2, abs=1e-6)
    assert report["log_ratio/q50@1-3"] == pytest.approx(2.0, abs=1e-6)
    assert report["ratio/q50@64+"] == pytest.approx(math.exp(-2), rel=1e-6)
    assert not [name for name in report if "@4-7" in name]


def test_moments_and_mismatch() -> None:
    even = noted([1, 1, 1], [0.7] * 3, [1.0] * 3)
    assert even["ratio/max"] == pytest.approx(math.exp(0.7), rel=1e-6)
    assert even["ratio/std"] == pytest.approx(0.0, abs=1e-6)
    assert "mismatch/kl" not in even
    fresh = noted([0, 5, 0], [0.5, 9.0, 0.5], [1.0] * 3)
    assert fresh["ratio/mean@0"] == pytest.approx(math.exp(0.5), rel=1e-6)
    assert fresh["ratio/mean"] == pytest.approx((2 * math.exp(0.5) + math.exp(9)) / 3, rel=1e-6)
    assert fresh["ratio/max"] == pytest.approx(math.exp(9), rel=1e-6)
    assert fresh["ratio/std"] == pytest.approx((math.exp(9) - math.exp(0.5)) * 2**0.5 / 3, rel=1e-6)
    assert fresh["mismatch/kl"] == pytest.approx(math.exp(0.5) - 1 - 0.5, rel=1e-6)


def test_clipped_tokens_are_counted_by_the_sign_of_their_advantage() -> None:
    report = noted([1] * 6, [1.0, 1.0, 0.0, 1.0, -1.0, 0.0], [1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    assert report["clip_fraction/positive"] == pytest.approx(2 / 3)
    assert report["clip_fraction/negative"] == pytest.approx(1 / 3)
    plain = noted([1] * 6, [1.0, 1.0, 0.0, 1.0, -1.0, 0.0], [1.0, 1.0, 1.0, -1.0, -1.0, -1.0], "reinforce")
    assert plain["clip_fraction/positive"] == plain["clip_fraction/negative"] == 0


def test_the_scales_of_good_and_bad_rows() -> None:
    logp = torch.tensor([[-0.5], [-2.0], [-4.0]], requires_grad=True)
    batch = TokenBatch(mask=torch.ones(3, 1, dtype=torch.bool))
    a = torch.tensor([[1.0], [1.0], [-2.0]])
    diagnostics = Diagnostics(batch, a)
    diagnostics.note(torch.arange(3), passed(logp))
    report = diagnostics.report()
    assert report["scale/imbalance"] == pytest.approx((0.5 + 2 - 8) / (0.5 + 2 + 8))
    assert report["scale/nll_ratio"] == pytest.approx(4 / 1.25)


@pytest.mark.parametrize("name", ["grpo", "asympo", "tis", "m2po"])
def test_every_step_reports_them(model_dir: Path, name: str) -> None:
    learner = Learner(model_dir, LearnerConfig(dtype="float64", micro_batch_tokens=40), get(name))
    metrics = learner.step(make_columns()).metrics
    for key in ("log_ratio/q50", "ratio/q95@0", "ess", "scale/imbalance", "clip_fraction/positive"):
        assert math.isfinite(metrics[key]), key


def test_what_is_reported_does_not_depend_on_the_split(model_dir: Path) -> None:
    reports = []
    for budget in (10_000, 30):
        learner = Learner(model_dir, LearnerConfig(dtype="float64", micro_batch_tokens=budget), get("grpo"))
        reports.append(learner.step(make_columns()).metrics)
    names = [n for n in reports[0] if n.startswith(("ratio/", "log_ratio/", "clip_fraction/", "scale/"))]
    assert len(names) > 10
    for name in names:
        assert reports[0][name] == pytest.approx(reports[1][name], abs=1e-5), name
