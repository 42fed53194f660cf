"""Value functions: a linear head on hidden states, alone or on a trunk of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class ValueHead(nn.Module):
    """V = h . w + b, [..., H] -> [...]; starts at 0, so an untrained critic changes nothing."""

    def __init__(self, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden, 1, dtype=dtype)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """Values of hidden states."""
        out: Tensor = self.linear(hidden.to(self.linear.weight.dtype)).squeeze(-1)
        return out


class ValueNetwork(nn.Module):
    """A trunk of its own (it makes hidden states, as the policy's does) with a value head."""

    def __init__(self, trunk: PreTrainedModel, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.trunk: PreTrainedModel = trunk
        self.head = ValueHead(hidden, dtype)
