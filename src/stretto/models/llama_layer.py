"""How a Llama-like model's weights lie in memory: the matrices of a layer, and where a parameter lives in them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from stretto.data.arrays import Array


@dataclass(slots=True)
class LlamaLayer:
    """Weights of one layer, as ``models.llama`` packs them."""

    norm1: Tensor
    norm2: Tensor
    qkv: Tensor
    out: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None

    def clone(self) -> LlamaLayer:
        """Independent copy."""
        held = {name: getattr(self, name) for name in self.__slots__}
        return replace(self, **{name: p.clone() for name, p in held.items() if p is not None})


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter lives: ``view`` has the parameter's dimensions (some split) over the packed storage."""

    view: Tensor
    shape: tuple[int, ...]

    def write(self, given: Tensor | Array) -> None:
        """Store the parameter."""
        value = torch.as_tensor(given).reshape(self.view.shape)
        if self.view.dim() == 2 and self.view.t().is_contiguous():
            self.view.t().copy_(value.t())  # torch has a fast transposed copy into contiguous memory only
        else:
            self.view.copy_(value)

    def read(self) -> Tensor:
        """The parameter in its own shape."""
        return self.view.reshape(self.shape)
