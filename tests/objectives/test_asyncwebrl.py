"""AsyncWebRL: a trajectory's advantage over a constant, or over its number of steps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from stale_rules import (
    autograd_agrees_with_finite_differences,
    gradient,
    obeys_the_rules,
    quadrants,
    some_advantages,
    stale_batch,
    unit_ratio_is_the_policy_gradient,
)
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import ConfigError, DataError
from stretto.objectives import get


def steps(lengths: list[int], scores: list[float] | None = None) -> tuple[TokenBatch, Tensor]:
    """One group of trajectories with one row of one token a step, on policy."""
    trajectory = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    rows = len(trajectory)
    logp = torch.full((rows, 1), -1.0, dtype=torch.float64)
    rewards = torch.zeros_like(logp)
    last = torch.tensor(lengths).cumsum(0) - 1
    if scores is not None:
        rewards[last, 0] = torch.tensor(scores, dtype=torch.float64)
    return TokenBatch(
        mask=torch.ones(rows, 1, dtype=torch.bool), logp_behavior=logp, logp_proximal=logp, rewards=rewards,
        group=torch.zeros(rows).long(), trajectory=trajectory,
    ), logp  # fmt: skip


def weight_of_each_step(lengths: list[int], a: list[float], **options: Any) -> Tensor:
    batch, logp = steps(lengths)
    advantages = torch.tensor(a, dtype=torch.float64)[batch.trajectory]
    _, grad = gradient(get("asyncwebrl", **options), batch, logp, advantages)
    return -grad[:, 0] * batch.rows


@pytest.mark.parametrize(
    "options",
    [{}, {"normaliser": "length"}, {"aggregation": "trajectory-sum"}, {"normaliser": "length", "cap": 1.1, "k": 3}],
)
def test_the_rules_of_all_methods(options: dict[str, Any]) -> None:
    obeys_the_rules("asyncwebrl", options)
    autograd_agrees_with_finite_differences("asyncwebrl", options)


def test_a_constant_of_one_is_decoupled_ppo_with_dual_clip() -> None:
    batch, logp = stale_batch()
    a = some_advantages(logp)
    plain = gradient(get("decoupled-ppo", dual_clip=3.0), batch, logp, a)[1]
    assert torch.equal(gradient(get("asyncwebrl", k=1), batch, logp, a)[1], plain)
    unit_ratio_is_the_policy_gradient("asyncwebrl", {"k": 1})


def test_golden_weights_of_a_step() -> None:
    lengths, a = [5, 5, 12, 13], [1.0, 1.0, -1.0, -1.0]
    starts = [0, 5, 10, 22]
    by_length = weight_of_each_step(lengths, a, normaliser="length")
    assert by_length[starts].tolist() == pytest.approx([0.2, 0.2, -0.08333, -0.07692], abs=1e-5)
    by_constant = weight_of_each_step(lengths, a)
    assert by_constant[starts].tolist() == pytest.approx([0.1, 0.1, -0.1, -0.1], abs=1e-12)
    # the sum over a group: 0 by length; by the constant the covariance of advantage and length
    assert float(by_length.sum()) == pytest.approx(0, abs=1e-12)
    mean_length = sum(lengths) / 4
    covariance = sum(x * (n - mean_length) for x, n in zip(a, lengths, strict=True)) / 4
    assert float(by_constant.sum()) / 4 == pytest.approx(covariance / 10, abs=1e-12)
    assert covariance < 0
    # a whole trajectory's weight: |A| against |A| |tau| / k
    ends = [5, 10, 22, 35]
    for weights, expected in ((by_length, [1, 1, 1, 1]), (by_constant, [0.5, 0.5, 1.2, 1.3])):
        total = [float(weights[s:e].abs().sum()) for s, e in zip(starts, ends, strict=True)]
        assert total == pytest.approx(expected, abs=1e-12)


def test_equal_lengths_sum_to_zero_either_way_and_lengths_of_k_are_grpo() -> None:
    lengths, a = [10] * 4, [1.0, 0.5, -0.5, -1.0]
    by_length = weight_of_each_step(lengths, a, normaliser="length")
    by_constant = weight_of_each_step(lengths, a)
    assert torch.equal(by_length, by_constant)
    assert float(by_constant.sum()) == pytest.approx(0, abs=1e-12)


def test_failed_steps_weigh_more_against_successful_ones_by_the_ratio_of_their_lengths() -> None:
    """The paper's 12.5 and 5.1 steps: 2.45 times. Here in the same proportion, 125 and 51."""
    lengths, a = [51, 125], [1.0, -1.0]
    by_length = weight_of_each_step(lengths, a, normaliser="length")
    by_constant = weight_of_each_step(lengths, a)
    change = float((by_constant[-1] / by_constant[0]) / (by_length[-1] / by_length[0]))
    assert change == pytest.approx(125 / 51, abs=1e-9)
    assert change == pytest.approx(2.45, abs=0.005)


def test_one_score_a_trajectory_however_many_rows() -> None:
    batch, logp = steps([1, 3, 2], [1.0, 0.0, 2.0])
    a = get("asyncwebrl").advantages(batch)
    z = torch.tensor([0.0, -1.0, 1.0], dtype=torch.float64) / (2 / 3) ** 0.5
    assert torch.allclose(a[:, 0], z[batch.trajectory], atol=1e-5)
    _, grad = gradient(get("asyncwebrl"), batch, logp)
    assert torch.allclose(-grad[:, 0] * 6, a[:, 0] / 10, atol=1e-12)


def test_the_constant_is_applied_once_whatever_the_aggregation() -> None:
    batch, logp = steps([1, 3, 2])
    a = torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64)[batch.trajectory]
    _, grad = gradient(get("asyncwebrl", aggregation="trajectory-sum", k=4), batch, logp, a)
    assert torch.allclose(-grad[:, 0], a / 4 / 3, atol=1e-12)


@pytest.mark.parametrize("normaliser", ["const", "length"])
def test_the_constant_gives_the_policy_gradient_of_trajectories_the_length_does_not(normaliser: str) -> None:
    """Two lengths, enumerated: stop after the first step or take a second; reward by the path."""
    z = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)

    def step(which: int, choice: int) -> Tensor:
        return torch.nn.functional.logsigmoid(z[which] if choice else -z[which])

    paths = [([(0, 1)], 1.0), ([(0, 0), (1, 1)], 0.4), ([(0, 0), (1, 0)], -2.0)]
    estimate, j = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for path, reward in paths:
        logp = torch.stack([step(*x) for x in path])[:, None]
        chance = logp.sum().exp()
        j = j + chance * reward
        batch, _ = steps([len(path)])
        now = logp.detach()
        batch = batch.replace(logp_behavior=now, logp_proximal=now)
        a = torch.full((len(path),), reward, dtype=torch.float64)
        objective = get("asyncwebrl", aggregation="trajectory-sum", normaliser=normaliser)
        estimate = estimate + chance.detach() * objective(batch, logp, None, a).total
    (policy_gradient,) = torch.autograd.grad(j, z, retain_graph=True)
    (ours,) = torch.autograd.grad(-estimate, z)
    cosine = float(torch.dot(ours, policy_gradient) / (ours.norm() * policy_gradient.norm()))
    if normaliser == "const":
        assert torch.allclose(ours * 10, policy_gradient, atol=1e-12)
    else:
        assert cosine < 0.999


def test_quadrants_of_ppo_with_a_dual_clip_and_dropped_weights() -> None:
    assert quadrants("asyncwebrl", {"k": 1}, high=2.9) == pytest.approx([0, 0.2, 2.9, 0], abs=1e-12)
    assert quadrants("asyncwebrl", {"k": 1}, high=3.1) == pytest.approx([0, 0.2, 0, 0], abs=1e-12)
    logp = torch.full((1, 4), -2.0, dtype=torch.float64)
    a = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    w = torch.tensor([[4.9, 5.1, 1.0, 0.1]], dtype=torch.float64)
    batch = TokenBatch(
        mask=torch.ones(1, 4, dtype=torch.bool), logp_behavior=logp - w.log(), logp_proximal=logp,
        trajectory=torch.tensor([0]),
    )  # fmt: skip
    _, grad = gradient(get("asyncwebrl", k=1), batch, logp, a)
    assert (-4 * grad / a)[0].tolist() == pytest.approx([4.9, 0, 1.0, 0.1], abs=1e-12)


def test_options_and_needs() -> None:
    objective = get("asyncwebrl")
    assert objective.needs == {"proximal"}
    assert (objective.k, objective.normaliser, objective.highest, objective.dual_clip) == (10, "const", 5, 3)
    assert get("asyncwebrl", normalizer="length").normaliser == "length"
    with pytest.raises(ConfigError, match="k = 0"):
        get("asyncwebrl", k=0)
    batch, logp = stale_batch()
    with pytest.raises(DataError, match="trajectory is missing"):
        get("asyncwebrl")(batch.replace(trajectory=None), logp)
