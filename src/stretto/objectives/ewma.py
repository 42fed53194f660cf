"""The exponentially weighted average of policies that PPO-EWMA is anchored to (arXiv 2110.00641)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from stretto.kernel.errors import ConfigError, DataError


class Ewma:
    """Average of lists of tensors: w' = beta w + 1, average <- average (beta w / w') + theta / w', w = 1 at first.

    ``beta`` 0 is the newest tensors, exactly; 1 the running mean of all, the initial ones included. ``average``:
    detached copies in float32 or wider. Raises ``ConfigError`` on a beta outside [0, 1], ``DataError`` if the tensors'
    number or shapes change.
    """

    def __init__(self, beta: float, tensors: Iterable[Tensor]) -> None:
        if not 0 <= beta <= 1:
            raise ConfigError(f"beta = {beta} must lie in [0, 1]")
        self.beta = beta
        self.weight = 1.0
        self.average = [x.detach().to(_wide(x), copy=True) for x in tensors]

    @torch.no_grad()
    def update(self, tensors: Iterable[Tensor]) -> None:
        """Takes in the policy after an optimizer step."""
        new = list(tensors)
        if [x.shape for x in new] != [x.shape for x in self.average]:
            raise DataError("the averaged policy and the new one differ in their tensors' number or shapes")
        weight = self.beta * self.weight + 1
        for average, x in zip(self.average, new, strict=True):
            average.mul_(self.beta * self.weight / weight).add_(x.detach().to(average.dtype), alpha=1 / weight)
        self.weight = weight


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def beta_of_lag(lag: float) -> float:
    """The beta whose average trails by ``lag`` optimizer steps in the long run: beta / (1 - beta) = lag (>= 0)."""
    if not lag >= 0:
        raise ConfigError(f"lag = {lag} must be at least 0")
    return lag / (1 + lag)


def lag_of_beta(beta: float, updates: int | None = None) -> float:
    """Optimizer steps that the average trails on a straight path after ``updates``: sum k beta^k / sum beta^k over
    k = 0 .. updates; None: in the long run, beta / (1 - beta)."""
    if updates is None:
        return beta / (1 - beta) if beta < 1 else float("inf")
    k = torch.arange(updates + 1, dtype=torch.float64)
    powers = torch.tensor(beta, dtype=torch.float64).pow(k)
    return float((k * powers).sum() / powers.sum())


def rescaled_beta(beta: float, factor: float) -> float:
    """beta for batches ``factor`` times smaller: the centre of mass beta / (1 - beta) grows by ``factor``, while Adam's
    learning rate shrinks by its square root (batch-size invariance)."""
    return beta if beta == 1 else beta_of_lag(lag_of_beta(beta) * factor)
