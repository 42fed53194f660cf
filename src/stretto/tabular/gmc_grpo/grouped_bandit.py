"""A bandit's groups, enumerated: the exact mean and second moment of a grouped policy-gradient estimator.

A group of G independent draws from ``behavior`` matters only through its counts, so its expectation is a finite sum
over the multinomial: C(G + K - 1, K - 1) terms for K arms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import torch
from scipy.special import gammaln
from torch import Tensor

from stretto.data.batch import TokenBatch
from stretto.kernel.errors import DataError


@dataclass(frozen=True)
class GroupedBandit:
    """``behavior``, ``policy`` [K]: probabilities of the arms, all positive; ``advantages`` [K], detached. Float64.

    ``DataError`` unless the shapes agree and both distributions sum to 1."""

    behavior: Tensor
    policy: Tensor
    advantages: Tensor

    def __post_init__(self) -> None:
        for name in ("behavior", "policy"):
            p = getattr(self, name)
            if p.shape != self.advantages.shape or abs(float(p.sum()) - 1) > 1e-9 or float(p.min()) <= 0:
                raise DataError(f"GroupedBandit: {name} must hold {len(self.advantages)} positive shares that sum to 1")

    @classmethod
    def centred(cls, behavior: list[float], policy: list[float], rewards: list[float]) -> GroupedBandit:
        """A bandit from lists of K numbers whose advantages are ``rewards`` minus their mean under ``policy``."""
        mu, pi, r = (torch.tensor(x, dtype=torch.float64) for x in (behavior, policy, rewards))
        return cls(mu, pi, r - (pi * r).sum())

    def true_gradient(self) -> Tensor:
        """sum_a pi_a A_a (e_a - pi) [K]: the gradient on the logits of the expected advantage."""
        weighted = self.policy * self.advantages
        return weighted - self.policy * weighted.sum()

    def moments(self, objective: Callable[..., object], size: int) -> tuple[Tensor, float]:
        """(E g [K], E |g|^2) of the descent direction g on the logits that ``objective`` takes from one group of
        ``size`` draws. Every possible group goes through the objective, in one batch."""
        counts = compositions(size, len(self.policy))
        chance = torch.exp(_log_multinomial(counts) + counts.double() @ self.behavior.log())
        arms = torch.repeat_interleave(
            torch.arange(counts.shape[1]).repeat(len(counts)), counts.flatten()
        )  # group by group, arm by arm
        rows = len(arms)
        logp = self.policy.log()[arms, None].requires_grad_()
        batch = TokenBatch(
            mask=torch.ones(rows, 1, dtype=torch.bool),
            logp_behavior=self.behavior.log()[arms, None],
            group=torch.arange(len(counts)).repeat_interleave(size),
        )
        loss = objective(batch, logp, advantages=self.advantages[arms])
        (grad,) = torch.autograd.grad(loss.total, logp)  # type: ignore[attr-defined]
        # the loss is a mean over all rows: undo it to have each row's own coefficient on grad log pi
        coefficient = -rows * grad[:, 0]
        score = torch.eye(len(self.policy), dtype=torch.float64)[arms] - self.policy
        g = (coefficient[:, None] * score).view(len(counts), size, -1).mean(1)
        return chance @ g, float(chance @ g.square().sum(1))


def compositions(total: int, parts: int) -> Tensor:
    """All ways to write ``total`` as a sum of ``parts`` counts >= 0: [n, parts] int64. ``DataError`` without parts or
    for a negative total."""
    if parts < 1 or total < 0:
        raise DataError(f"compositions: {parts} parts of {total}; needs at least one part and a total >= 0")
    # stars and bars: where the parts - 1 bars stand among total + parts - 1 places
    bars = torch.tensor(list(combinations(range(total + parts - 1), parts - 1)), dtype=torch.int64)
    ends = torch.full((len(bars), 1), total + parts - 1)
    return torch.cat([bars, ends], 1).diff(dim=1, prepend=torch.full_like(ends, -1)) - 1


def _log_multinomial(counts: Tensor) -> Tensor:
    x = counts.numpy()
    return torch.from_numpy(gammaln(x.sum(1) + 1.0) - gammaln(x + 1.0).sum(1))
