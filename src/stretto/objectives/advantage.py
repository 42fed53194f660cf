"""Advantages from groups of trajectories. Never with gradient; [B,T], 0 where masked. Over time: ``temporal``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.batch import TokenBatch

STD_EPSILON = 1e-6
"""Added to a group's standard deviation. Not published: our choice."""


@dataclass(frozen=True)
class GroupStatistics:
    """Per trajectory (U of them): ``returns``, ``index`` of its group, ``valid``: it has a reward. Per group (G of
    them), over valid raw rewards: ``count``, ``mean``, ``std`` (population), ``constant`` (>= 2 of them, all equal).
    ``trajectory`` [B]: the row's trajectory."""

    returns: Tensor
    index: Tensor
    valid: Tensor
    count: Tensor
    mean: Tensor
    std: Tensor
    constant: Tensor
    trajectory: Tensor


def row_rewards(batch: TokenBatch) -> Tensor:
    """R_i [B]: sum of the row's rewards; NaN where a policy token's reward is (the reward is absent)."""
    (rewards,) = batch.need("rewards")
    rewards = rewards.detach()
    counted = torch.where(batch.mask | rewards.isfinite(), rewards, 0.0)
    return torch.where(batch.inside, counted, 0.0).sum(1)


def group_statistics(batch: TokenBatch) -> GroupStatistics:
    """Statistics of each group's valid raw rewards, before any scaling. The reward of a trajectory that has several
    rows is the sum over its rows: one score per trajectory, however many steps it took."""
    (group,) = batch.need("group")
    returns, trajectory = row_rewards(batch), batch.trajectory_index()
    index = torch.unique(group, return_inverse=True)[1]
    if batch.trajectory is not None:
        several = batch.trajectories
        returns = returns.new_zeros(several).index_add(0, trajectory, returns)
        index = index.new_zeros(several).index_copy(0, trajectory, index)
    valid = returns.isfinite()
    returns = torch.where(valid, returns, 0.0)
    groups = int(index.max()) + 1 if index.numel() else 0
    zeros = returns.new_zeros(groups)
    count = zeros.index_add(0, index, valid.to(returns.dtype))
    mean = zeros.index_add(0, index, returns) / count.clamp(min=1)
    deviation = torch.where(valid, returns - mean[index], 0.0)
    std = (zeros.index_add(0, index, deviation.square()) / count.clamp(min=1)).sqrt()
    high = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, torch.where(valid, returns, -torch.inf), "amax")
    low = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, torch.where(valid, returns, torch.inf), "amin")
    return GroupStatistics(returns, index, valid, count, mean, std, (count >= 2) & (high == low), trajectory)


def group_advantages(batch: TokenBatch, std: bool, leave_one_out: bool = False) -> Tensor:
    """(R_i - mean_g) [/ (std_g + 1e-6)] [B,T]; leave-one-out: R_i minus the mean of the others (RLOO).

    A group of one valid reward, a group without variance and a trajectory without a reward have 0. Sum over a group's
    trajectories: 0.
    """
    g = group_statistics(batch)
    a = g.returns - g.mean[g.index]
    if leave_one_out:
        a = a * (g.count / (g.count - 1).clamp(min=1))[g.index]
    if std:
        a = a / (g.std + STD_EPSILON)[g.index]
    a = torch.where(g.valid & (g.count >= 2)[g.index] & ~g.constant[g.index], a, 0.0)
    return torch.where(batch.mask, a[g.trajectory][:, None], 0.0)


def steps_of(batch: TokenBatch) -> Tensor:
    """|tau| [B]: rows of the row's trajectory."""
    trajectory = batch.trajectory_index()
    return torch.bincount(trajectory)[trajectory] if trajectory.numel() else trajectory


def standardised(advantages: Tensor, mask: Tensor) -> Tensor:
    """Zero mean and unit population deviation over the policy tokens of the batch."""
    n = mask.sum().clamp(min=1)
    mean = torch.where(mask, advantages, 0.0).sum() / n
    centred = torch.where(mask, advantages - mean, 0.0)
    return centred / ((centred.square().sum() / n).sqrt() + STD_EPSILON)
