"""The compressed list: a row's policy tokens, closed up. Recursions over time run on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stretto.data.arrays import Array
from stretto.kernel.errors import DataError

BOUND = 1e18
"""Results of recursions are cut here: one further ratio (at most e^40) and a sum over a batch still fit in float32."""
HUGE = 1e150
"""Intermediates are cut here where they overflow: the product of two still fits into float64."""


@dataclass(frozen=True)
class Compressed:
    """``mask`` [B,T], ``count`` [B] policy tokens of each row, ``width`` n = the most of them."""

    mask: Tensor
    count: Tensor
    width: int

    @cached_property
    def whole(self) -> bool:
        """Every place holds a policy token: closed and open rows are the same."""
        return int(self.count.sum()) == self.mask.numel()

    @cached_property
    def valid(self) -> Tensor:
        """[B,n]: there is such a token."""
        return torch.arange(self.width, device=self.mask.device) < self.count[:, None]

    @cached_property
    def place(self) -> Tensor:
        """[B,n]: column of the k-th policy token."""
        return (~self.mask).to(torch.uint8).argsort(dim=1, stable=True)[:, : self.width]

    def _like_mask(self, x: Tensor) -> Tensor:
        if x.shape != self.mask.shape:
            raise DataError(f"a number a token must be {list(self.mask.shape)} like the mask; got {list(x.shape)}")
        return x.detach()

    def close(self, x: Tensor) -> Tensor:
        """[B,T] -> [B,n], no gradient; 0 where there is no token. What stands in masked places leaves here. May
        share memory with ``x``."""
        x = self._like_mask(x)
        if self.whole:
            return x
        if compiled(x):
            return run_kernel("close", (len(x), self.width), x.dtype, x, self.mask, self.count)
        return torch.where(self.valid, x.gather(1, self.place), 0.0)

    def close_rewards(self, rewards: Tensor, length: Tensor | None = None) -> Tensor:
        """Rewards of policy tokens [B,n]: one on a non-policy token is added to the policy token before it (BRACE,
        arXiv 2609.09783), one before the first policy token is dropped; padding (from ``length`` [B] on) and
        non-finite numbers off the policy count as 0."""
        x = self._like_mask(rewards)
        if self.whole:
            return x
        if length is None:
            length = torch.full_like(self.count, x.shape[1])
        if compiled(x):
            return run_kernel("close_rewards", (len(x), self.width), x.dtype, x, self.mask, length, self.count)
        columns = torch.arange(x.shape[1], device=x.device).expand_as(self.mask)
        off = torch.where((columns < length[:, None]) & ~self.mask & x.isfinite(), x, 0.0)
        kth = self.mask.cumsum(1) - 1
        return self.close(x).scatter_add(1, kth.clamp(min=0), torch.where(kth >= 0, off, 0.0))

    def open(self, y: Tensor) -> Tensor:
        """[B,n] -> [B,T]; 0 in masked places."""
        if self.whole:
            return y
        if compiled(y) and self.width:
            return run_kernel("open_", self.mask.shape, y.dtype, y, self.mask)
        out = y.new_zeros(self.mask.shape)
        return out.scatter_add(1, self.place, torch.where(self.valid, y, 0.0))


def compress(mask: Tensor) -> Compressed:
    """Close up the policy tokens of ``mask`` [B,T]."""
    count = mask.view(torch.int8).sum(1, dtype=torch.int32).long()  # several times as fast as mask.sum(1)
    return Compressed(mask, count, int(count.max()) if mask.numel() else mask.shape[1])


def compiled(x: Tensor) -> bool:
    """Compiled kernels serve this tensor: on the CPU, in float32 or float64."""
    return x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def run_kernel(name: str, shape: tuple[int, ...], dtype: torch.dtype, *arguments: Tensor | float) -> Tensor:
    """A kernel's result [``shape``]; tensors among the ``arguments`` go in contiguous, floating ones as ``dtype``.
    Numba is loaded here, on first use."""
    from stretto.objectives import scan_kernels

    def array(x: Tensor | float) -> Array | float:
        if not isinstance(x, Tensor):
            return x
        values: Array = (x.to(dtype) if x.is_floating_point() else x).detach().contiguous().numpy()
        return values

    out = torch.empty(shape, dtype=dtype)
    getattr(scan_kernels, name)(*map(array, arguments), out.numpy())
    return out
