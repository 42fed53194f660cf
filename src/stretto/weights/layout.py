"""Where each tensor of a version lies in a slot: names, shapes, dtypes, byte offsets. Plain numbers, JSON-able."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stretto.kernel.errors import WeightsError

ALIGNMENT = 64
_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: ``dtype`` by name, ``offset`` in bytes from the start of the slot's data."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's."""
        return _DTYPES[self.dtype]

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.torch_dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Entries in order of their offsets; ``nbytes`` in all, alignment gaps included."""

    entries: tuple[Entry, ...]
    nbytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """The layout of these tensors; ``WeightsError`` on a dtype that weights don't have."""
        entries, at = [], 0
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            if dtype not in _DTYPES:
                raise WeightsError(f"weight {name!r} is {dtype}; only {', '.join(_DTYPES)} can be published")
            entry = Entry(name, tuple(tensor.shape), dtype, at)
            entries.append(entry)
            at += -(-entry.nbytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(entries), at)

    def to_json(self) -> list[list[Any]]:
        """[[name, shape, dtype, offset], ...]."""
        return [[e.name, list(e.shape), e.dtype, e.offset] for e in self.entries]

    @classmethod
    def from_json(cls, rows: list[list[Any]]) -> Layout:
        """Inverse of ``to_json``."""
        entries = tuple(Entry(name, tuple(shape), dtype, offset) for name, shape, dtype, offset in rows)
        ends = (e.offset + -(-e.nbytes // ALIGNMENT) * ALIGNMENT for e in entries)
        return cls(entries, max(ends, default=0))
