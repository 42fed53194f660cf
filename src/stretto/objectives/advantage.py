"""Advantages from groups of trajectories. Never with gradient; [B,T], 0 where masked. Over time: ``temporal``."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.data.variance import all_equal
from stretto.kernel.errors import DataError, NonFiniteError

STD_EPSILON = 1e-6
"""Added to a group's standard deviation. Not published: our choice."""


@dataclass(frozen=True)
class GroupStatistics:
    """Per trajectory (U of them): ``returns``, ``index`` of its group, ``valid``: it has a reward. Per group (G of
    them), over valid raw rewards: ``count``, ``mean``, ``std`` (population), ``constant`` (>= 2, equal up to rounding).
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
    """R_i [B]: sum of the row's rewards; NaN where a policy token's reward is (the reward is absent).
    ``NonFiniteError`` if one is infinite there."""
    (rewards,) = batch.need("rewards")
    rewards = rewards.detach()
    _refuse_infinite(rewards, batch.mask)
    counted = torch.where(batch.mask | rewards.isfinite(), rewards, 0.0)
    return torch.where(batch.inside, counted, 0.0).sum(1)


def absent_rows(batch: TokenBatch) -> Tensor:
    """[B] bool: the reward of the row's trajectory is absent: NaN at a policy token of one of its rows. None is in a
    batch without rewards. ``NonFiniteError`` if a policy token's is infinite."""
    if batch.rewards is None or bool(batch.rewards.sum().isfinite()):
        return torch.zeros(batch.rows, dtype=torch.bool, device=batch.mask.device)
    _refuse_infinite(batch.rewards, batch.mask)
    absent = (batch.rewards.isnan() & batch.mask).any(1)
    return over_trajectories(batch, absent)[batch.trajectory_index()]


def _refuse_infinite(rewards: Tensor, mask: Tensor) -> None:
    bad = (rewards.isinf() & mask).any(1)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise NonFiniteError(f"the reward of row {row} is infinite: a reward is a number, or NaN where it is absent")


def over_trajectories(batch: TokenBatch, rows: Tensor) -> Tensor:
    """[trajectories] bool: one of the trajectory's rows [B] is True."""
    return rows.new_zeros(batch.trajectories, dtype=torch.int32).index_add(0, batch.trajectory_index(), rows.int()) > 0


def group_statistics(batch: TokenBatch, members: Tensor | None = None) -> GroupStatistics:
    """Statistics of each group's valid raw rewards, before any scaling. The reward of a trajectory that has several
    rows is the sum over its rows: one score per trajectory, however many steps it took.

    ``members`` [B] bool: rows that are in the batch for this purpose (default: all); a trajectory counts if one of its
    rows does. ``DataError`` if a trajectory is in several groups.
    """
    (group,) = batch.need("group")
    returns, trajectory = row_rewards(batch), batch.trajectory_index()
    row_group = torch.unique(group, return_inverse=True)[1]
    index = row_group
    if batch.trajectory is not None:
        several = batch.trajectories
        returns = returns.new_zeros(several).index_add(0, trajectory, returns)
        index = index.new_zeros(several).index_copy(0, trajectory, index)
        if bool((index[trajectory] != row_group).any()):
            row = int((index[trajectory] != row_group).nonzero()[0])
            raise DataError(f"trajectory {int(batch.trajectory[row])} has rows in several groups")
    valid = ~returns.isnan()
    if members is not None:
        valid = valid & over_trajectories(batch, members)
    returns = torch.where(valid, returns, 0.0)
    groups = int(index.max()) + 1 if index.numel() else 0
    zeros = returns.new_zeros(groups)
    count = zeros.index_add(0, index, valid.to(returns.dtype))
    mean = zeros.index_add(0, index, returns) / count.clamp(min=1)
    deviation = torch.where(valid, returns - mean[index], 0.0)
    std = (zeros.index_add(0, index, deviation.square()) / count.clamp(min=1)).sqrt()
    high = torch.full_like(zeros, -torch.inf).scatter_reduce(0, index, torch.where(valid, returns, -torch.inf), "amax")
    low = torch.full_like(zeros, torch.inf).scatter_reduce(0, index, torch.where(valid, returns, torch.inf), "amin")
    constant = (count >= 2) & all_equal(low, high)
    return GroupStatistics(returns, index, valid, count, mean, std, constant, trajectory)


def group_advantages(
    batch: TokenBatch, std: bool, leave_one_out: bool = False, members: Tensor | None = None
) -> Tensor:
    """(R_i - mean_g) [/ (std_g + 1e-6)] [B,T]; leave-one-out: R_i minus the mean of the others (RLOO).

    A group of one valid reward, a group without variance, a trajectory without a reward and one that isn't among the
    ``members`` [B] (see ``group_statistics``) have 0. Sum over a group's trajectories: 0.
    """
    g = group_statistics(batch, members)
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
