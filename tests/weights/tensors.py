"""Weights for tests: several dtypes, a view that isn't contiguous, more than one piece of copying."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from stretto.data.identity import PolicyVersion


def weights(seed: int = 0) -> dict[str, Tensor]:
    """Drawn from ``seed``."""
    g = torch.Generator().manual_seed(seed)
    return {
        "embed": torch.randn(700, 500, generator=g),
        "norm": torch.randn(7, generator=g),
        "half": torch.randn(3, 5, generator=g).bfloat16(),
        "wide": torch.randn(11, generator=g, dtype=torch.float64),
        "transposed": torch.randn(6, 4, generator=g).T,
    }


def small(seed: int) -> dict[str, Tensor]:
    """Some kilobytes."""
    return {"w": torch.full((40, 30), float(seed)), "b": torch.full((3,), -float(seed))}


def equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """The same names, dtypes and bits."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


def version(number: int, policy: str = "policy") -> PolicyVersion:
    """A version of the only policy."""
    return PolicyVersion(policy, number)
