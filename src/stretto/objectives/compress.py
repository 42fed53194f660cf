"""The compressed list: a row's policy tokens, closed up. Recursions over time run on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Compressed:
    """``place`` [B,n]: column of the k-th policy token; ``valid`` [B,n]: it exists; n = most policy tokens of a row."""

    mask: Tensor
    place: Tensor
    valid: Tensor

    def close(self, x: Tensor) -> Tensor:
        """[B,T] -> [B,n]; 0 where there is no token. What stands in masked places leaves here."""
        return torch.where(self.valid, x.gather(1, self.place), 0.0)

    def open(self, y: Tensor) -> Tensor:
        """[B,n] -> [B,T]; 0 in masked places."""
        out = y.new_zeros(self.mask.shape)
        return out.scatter_add(1, self.place, torch.where(self.valid, y, 0.0))


def compress(mask: Tensor) -> Compressed:
    """Close up the policy tokens of ``mask`` [B,T]."""
    counts = mask.sum(1)
    n = int(counts.max()) if mask.numel() else 0
    place = (~mask).to(torch.uint8).argsort(dim=1, stable=True)[:, :n]
    valid = torch.arange(n, device=mask.device) < counts[:, None]
    return Compressed(mask, place, valid)


def policy_rewards(rewards: Tensor, mask: Tensor, inside: Tensor) -> Tensor:
    """Rewards on policy tokens [B,T]: one on a non-policy token is added to the policy token before it (BRACE),
    one before the first policy token is dropped; padding and non-finite numbers off the policy count as 0."""
    rewards = rewards.detach()
    off = torch.where(inside & ~mask & rewards.isfinite(), rewards, 0.0)
    on = torch.where(mask, rewards, 0.0)
    if not bool(off.any()):
        return on
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    last = torch.where(mask, columns, -1).cummax(1).values
    moved = torch.zeros_like(on).scatter_add(1, last.clamp(min=0), torch.where(last >= 0, off, 0.0))
    return on + moved
