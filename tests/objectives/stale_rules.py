"""The rules of all objectives (``test_cross``) under other options than the defaults, on a stale batch whose
trajectories have several rows: for the tests of single methods."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.objectives import get

TOKEN_FIELDS = ("logp_behavior", "logp_proximal", "logp_old", "entropy", "values")


def stale_batch(seed: int = 0, scale: float = 0.5) -> tuple[TokenBatch, Tensor]:
    """Ten rows: trajectories of one to three rows in groups of four, three and one, an empty row, a row that was
    trained before and comes back, a group without variance. Float64."""
    g = torch.Generator().manual_seed(seed)
    rows, width = 10, 6
    mask = torch.rand(rows, width, generator=g) < 0.75
    mask[:, -1] = True
    mask[3] = False
    mask[4] = torch.arange(width) == 2  # a response of one token
    logp = -torch.rand(rows, width, generator=g, dtype=torch.float64) * 3 - 0.01

    def near(sd: float) -> Tensor:
        return logp + sd * torch.randn(rows, width, generator=g, dtype=torch.float64)

    rewards = torch.zeros(rows, width, dtype=torch.float64)
    rewards[:, -1] = torch.tensor([1, 0, 2, 1, 0, 1, 1, 1, 3, 1.0])
    last = mask.int().cumsum(1).argmax(1)
    moved = torch.zeros_like(rewards).scatter(1, last[:, None], rewards[:, -1:])
    nan = math.nan
    batch = TokenBatch(
        mask=mask,
        logp_behavior=near(scale),
        logp_proximal=near(scale / 2),
        logp_old=near(scale / 2),
        entropy=torch.rand(rows, width, generator=g, dtype=torch.float64) * 2,
        values=torch.randn(rows, width, generator=g, dtype=torch.float64),
        rewards=moved,
        versions=torch.randint(3, 8, (rows, width), generator=g),
        group=torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 3]),
        trajectory=torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 7, 8]),
        reward_fast=torch.tensor([1, 1, 2, 1, 0, 1, 1, 1, 3, 0.5], dtype=torch.float64),
        reward_slow=torch.tensor([nan, nan, nan, nan, nan, nan, nan, nan, nan, 2.5], dtype=torch.float64),
        trained_at=torch.tensor([-1, -1, -1, -1, -1, -1, -1, -1, -1, 2]),
        version=8,
    )
    return batch, logp


def gradient(objective: Any, batch: TokenBatch, logp: Tensor, advantages: Tensor | None = None) -> tuple[Any, Tensor]:
    """The loss and its gradient in ``logp``."""
    logp = logp.clone().requires_grad_()
    loss = objective(batch, logp, advantages=advantages)
    (grad,) = torch.autograd.grad(loss.total, logp)
    return loss, grad


def some_advantages(like: Tensor, seed: int = 1) -> Tensor:
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def permuted_rows_and_new_labels_change_nothing(name: str, options: dict[str, Any]) -> None:
    batch, logp = stale_batch()
    loss, grad = gradient(get(name, **options), batch, logp)
    order = torch.tensor([3, 9, 0, 5, 1, 8, 4, 2, 7, 6])
    moved = batch.select(order).replace(group=7 - 3 * batch.group[order], trajectory=90 - 7 * batch.trajectory[order])
    again, moved_grad = gradient(get(name, **options), moved, logp[order])
    assert again.total.item() == pytest.approx(loss.total.item(), abs=1e-12)
    assert torch.allclose(moved_grad, grad[order], atol=1e-13, rtol=0)
    assert bool((grad != 0).any())


def masked_places_may_hold_anything(name: str, options: dict[str, Any], fill: float) -> None:
    batch, logp = stale_batch()
    loss, grad = gradient(get(name, **options), batch, logp)
    off = ~batch.mask
    dirty = {field: torch.where(off, fill, getattr(batch, field)) for field in TOKEN_FIELDS}
    again, again_grad = gradient(get(name, **options), batch.replace(**dirty), torch.where(off, fill, logp))
    assert torch.equal(again.total, loss.total)
    assert torch.equal(again_grad, grad)
    assert again.metrics.report() == loss.metrics.report()


def extra_columns_of_nan_change_nothing(name: str, options: dict[str, Any]) -> None:
    batch, logp = stale_batch()
    loss, grad = gradient(get(name, **options), batch, logp)

    def widen(x: Tensor) -> Tensor:
        return torch.cat([x, torch.full((x.shape[0], 2), math.nan).to(x.dtype)], 1)

    fields = {field: widen(getattr(batch, field)) for field in (*TOKEN_FIELDS, "rewards")}
    mask = torch.cat([batch.mask, torch.zeros(batch.rows, 2, dtype=torch.bool)], 1)
    versions = torch.cat([batch.versions, torch.full((batch.rows, 2), -1)], 1)
    again, wide = gradient(get(name, **options), batch.replace(mask=mask, versions=versions, **fields), widen(logp))
    assert again.total.item() == pytest.approx(loss.total.item(), abs=1e-14)
    assert torch.allclose(wide[:, :-2], grad, atol=1e-14, rtol=0)
    assert bool((wide[:, -2:] == 0).all())


def micro_batches_add_up(name: str, options: dict[str, Any]) -> None:
    batch, logp = stale_batch()
    objective = get(name, **options)
    a = objective.advantages(batch)
    whole = objective(batch, logp, advantages=a)
    step = batch.replace(totals=batch.step_totals())
    if "statistics" in objective.needs:
        step = step.replace(statistics=objective.statistics(batch, logp))
    for parts in ([[0, 1, 3], [2, 4, 5, 6, 7, 8, 9]], [[8], [0, 1], [9, 4], [3, 2, 5], [7], [6]]):
        losses = [objective(step.select(torch.tensor(p)), logp[p], advantages=a[p]) for p in parts]
        assert sum(x.total.item() for x in losses) == pytest.approx(whole.total.item(), abs=1e-12)
        metrics = losses[0].metrics
        for more in losses[1:]:
            metrics = metrics + more.metrics
        assert metrics.report() == pytest.approx(whole.metrics.report(), abs=1e-12)


def huge_log_ratios_stay_finite(name: str, options: dict[str, Any], sign: float, dtype: torch.dtype) -> None:
    logp = torch.full((2, 3), -1.0, dtype=dtype)
    far = logp + sign * torch.tensor([[500.0, -500.0, 500.0], [0.0, 500.0, 0.0]], dtype=dtype)
    batch = TokenBatch(
        mask=torch.ones(2, 3, dtype=torch.bool), logp_behavior=far, logp_proximal=far - sign * 500, logp_old=-far,
        entropy=torch.ones(2, 3, dtype=dtype), group=torch.tensor([0, 0]), trajectory=torch.tensor([0, 1]),
        reward_fast=torch.zeros(2, dtype=dtype), reward_slow=torch.tensor([math.nan, 1.0], dtype=dtype),
        trained_at=torch.tensor([-1, 0]), version=3,
    )  # fmt: skip
    a = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]], dtype=dtype)
    loss, grad = gradient(get(name, **options), batch, logp, a)
    assert bool(loss.total.isfinite())
    assert bool(grad.isfinite().all())
    assert all(math.isfinite(v) for v in loss.metrics.report().values())


def no_policy_tokens_give_zero(name: str, options: dict[str, Any]) -> None:
    batch, logp = stale_batch()
    nan = torch.full_like(logp, math.nan)
    empty = batch.replace(mask=torch.zeros_like(batch.mask), **dict.fromkeys(TOKEN_FIELDS, nan))
    loss, grad = gradient(get(name, **options), empty, nan)
    assert loss.total.item() == 0
    assert bool((grad == 0).all())
    loss, grad = gradient(get(name, **options), batch.select(torch.arange(0)), logp[:0])
    assert loss.total.item() == 0


def gradient_flows_only_through_logp_and_values(name: str, options: dict[str, Any]) -> None:
    batch, logp = stale_batch()
    fields = (*TOKEN_FIELDS, "rewards", "reward_fast", "reward_slow")
    sources = {f: getattr(batch, f).clone().requires_grad_() for f in fields}
    a = torch.ones_like(logp).requires_grad_()
    values, logp = torch.zeros_like(logp).requires_grad_(), logp.clone().requires_grad_()
    get(name, **options)(batch.replace(**sources), logp, values, a).total.backward()
    assert logp.grad is not None
    assert values.grad is not None
    assert bool(logp.grad.abs().sum() > 0)
    assert a.grad is None
    assert all(s.grad is None or bool((s.grad == 0).all()) for s in sources.values())


def unit_ratio_is_the_policy_gradient(name: str, options: dict[str, Any]) -> None:
    """Bit for bit, in both precisions, where every policy is the current one."""
    for dtype in (torch.float32, torch.float64):
        batch, logp = stale_batch()
        logp, a = logp.to(dtype), some_advantages(logp).to(dtype)
        batch = batch.replace(logp_behavior=logp, logp_proximal=logp, logp_old=logp, trained_at=None, reward_slow=None)
        batch = batch.replace(trained_at=torch.full((10,), -1), reward_slow=torch.full((10,), math.nan, dtype=dtype))
        objective = get(name, **options)
        plain = gradient(get("reinforce", aggregation=objective.aggregation), batch, logp, a)[1]
        assert torch.equal(gradient(objective, batch, logp, a)[1], plain)
        assert bool((plain[batch.mask] != 0).all())


def autograd_agrees_with_finite_differences(name: str, options: dict[str, Any], frozen: Tensor | None = None) -> None:
    """Of the surrogate: whatever is a statistic of the step stays as it was. ``frozen`` [B,T]: places left out, where a
    detached decision moves with the token."""
    batch, logp = stale_batch()
    objective, a = get(name, **options), some_advantages(logp)
    if "statistics" in objective.needs:
        batch = batch.replace(statistics=objective.statistics(batch, logp))
    _, grad = gradient(objective, batch, logp, a)
    compared = batch.mask if frozen is None else batch.mask & ~frozen
    for i, t in compared.nonzero().tolist():
        step = torch.zeros_like(logp)
        step[i, t] = 1e-6
        high, low = (objective(batch, logp + s * step, advantages=a).total for s in (1, -1))
        assert float((high - low) / 2e-6) == pytest.approx(float(grad[i, t]), abs=1e-7)


def quadrants(name: str, options: dict[str, Any], high: float = 3.0, low: float = 0.2) -> list[float]:
    """Multiplier of A grad logp for A > 0 and r high, A > 0 and r low, A < 0 and r high, A < 0 and r low, each a row of
    one token with trajectory and group of its own."""
    logp = torch.full((4, 1), -2.0, dtype=torch.float64)
    d = torch.tensor([[high], [low], [high], [low]], dtype=torch.float64).log()
    a = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]], dtype=torch.float64)
    batch = TokenBatch(
        mask=torch.ones(4, 1, dtype=torch.bool), logp_behavior=logp - d, logp_proximal=logp - d, logp_old=logp - d,
        entropy=torch.ones_like(logp), group=torch.arange(4), trajectory=torch.arange(4),
        trained_at=torch.full((4,), -1), reward_slow=torch.full((4,), math.nan), reward_fast=torch.zeros(4),
    )  # fmt: skip
    _, grad = gradient(get(name, **options), batch, logp, a)
    return (grad * -4 / a)[:, 0].tolist()


def obeys_the_rules(name: str, options: dict[str, Any]) -> None:
    """All rules that hold for every method."""
    permuted_rows_and_new_labels_change_nothing(name, options)
    for fill in (math.nan, math.inf, 99.0):
        masked_places_may_hold_anything(name, options, fill)
    extra_columns_of_nan_change_nothing(name, options)
    micro_batches_add_up(name, options)
    for dtype in (torch.float32, torch.float64):
        for sign in (1.0, -1.0):
            huge_log_ratios_stay_finite(name, options, sign, dtype)
    no_policy_tokens_give_zero(name, options)
    gradient_flows_only_through_logp_and_values(name, options)
