"""Names, shapes, dtypes and byte offsets of the tensors of a version: plain data, free of torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open

from stretto.kernel.errors import DataError, WeightsError

if TYPE_CHECKING:
    from torch import Tensor

ALIGNMENT = 64
_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}


def aligned(nbytes: int) -> int:
    """The next multiple of ``ALIGNMENT`` bytes."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor: ``dtype`` by torch's name, ``offset`` in bytes from the start of the data."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return _BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.itemsize


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
            if dtype not in _BYTES:
                raise WeightsError(f"weight {name!r} is {dtype}; only {', '.join(_BYTES)} can be published")
            entry = Entry(name, tuple(tensor.shape), dtype, at)
            entries.append(entry)
            at += aligned(entry.nbytes)
        return cls(tuple(entries), at)


def published_bytes(model_dir: Path, itemsize: int) -> int:
    """Upper bound of what a model in Transformers format publishes with ``itemsize`` bytes per parameter."""
    files = sorted(model_dir.glob("*.safetensors"))
    total = 0
    for path in files:
        with safe_open(path, framework="np") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                total += aligned(math.prod(tensors.get_slice(name).get_shape()) * itemsize)
    if files:
        return total
    files = sorted(model_dir.glob("pytorch_model*.bin"))
    if not files:
        raise DataError(f"{model_dir} holds no weights (*.safetensors or pytorch_model*.bin)")
    return sum(p.stat().st_size for p in files) * itemsize  # at least one byte per parameter
