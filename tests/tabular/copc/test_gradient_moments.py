"""Exact moments of an objective's gradient on a token tree."""

from __future__ import annotations

import math

import pytest
import torch

from stretto.objectives import get
from stretto.tabular.copc.gradient_moments import DriftedPolicies, drifted_policies, enumerated, gradient_moments


@pytest.fixture(scope="module")
def small() -> DriftedPolicies:
    return drifted_policies(3, 3, 1.0, 0)


def brute(world: DriftedPolicies, objective: object) -> tuple[torch.Tensor, float]:
    """Mean and variance with one backward pass per trajectory."""
    tree = world.tree
    gradients = []
    batch, _ = enumerated(world)
    for row in range(len(tree.reward)):
        logits = world.current.clone().requires_grad_()
        table = torch.log_softmax(logits, 1)
        logp = table[tree.nodes[row]].gather(1, tree.actions[row][:, None])[:, 0][None]
        loss = objective(batch.select(torch.tensor([row])), logp).policy  # type: ignore[operator]
        (g,) = torch.autograd.grad(loss * tree.mask[row].sum(), logits)
        gradients.append(-g)
    stacked, chance = torch.stack(gradients), tree.chance(world.behaviour)
    mean = torch.einsum("p,pnv->nv", chance, stacked)
    second = chance @ stacked.square().sum((1, 2))
    return mean, float(second - mean.square().sum())


@pytest.mark.parametrize("keep", [(0.5, 2.0), (0.0, math.inf)])
def test_moments_equal_one_backward_pass_per_trajectory(small: DriftedPolicies, keep: tuple[float, float]) -> None:
    objective = get("copc", keep=keep)
    found = gradient_moments(small, objective)
    mean, variance = brute(small, objective)
    assert torch.allclose(found.mean, mean, rtol=0, atol=1e-12)
    assert found.variance == pytest.approx(variance, abs=1e-12)


def test_the_target_is_the_gradient_of_the_surrogate_on_the_behaviour_policys_prefixes(small: DriftedPolicies) -> None:
    tree = small.tree
    logits = small.current.clone().requires_grad_()
    table = torch.log_softmax(logits, 1)
    weight = tree.visits(small.behaviour)[:, None] * small.current.exp() * tree.advantages(small.current)
    (g,) = torch.autograd.grad((weight * table).sum(), logits)
    assert torch.allclose(gradient_moments(small, get("copc")).target, g, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_raw_traces_without_a_mask_are_unbiased_for_any_critic(seed: int) -> None:
    world = drifted_policies(3, 4, 1.0, seed)
    anything = DriftedPolicies(world.tree, world.behaviour, world.current, 10 * torch.randn_like(world.critic))
    for raw in (world, anything):
        objective = get("copc", residual_mode="trace", clip=(0.0, math.inf), keep=(0.0, math.inf))
        assert gradient_moments(raw, objective).bias < 1e-10


def test_unclipped_residuals_are_biased(small: DriftedPolicies) -> None:
    raw = {"clip": (0.0, math.inf), "keep": (0.0, math.inf)}
    assert gradient_moments(small, get("copc", residual_mode="residual", **raw)).bias > 0.1


def test_without_drift_all_modes_agree_and_have_no_bias() -> None:
    world = drifted_policies(3, 3, 0.0, 1)
    found = [gradient_moments(world, get("copc", residual_mode=mode)) for mode in ("residual", "continuation", "trace")]
    for m in found:
        assert m.bias < 1e-12
        assert m.variance == pytest.approx(found[0].variance, abs=1e-12)
