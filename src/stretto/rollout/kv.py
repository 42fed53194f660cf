"""The KV cache of an engine: one buffer per layer, one row per slot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stretto.models.forward import KVShape


class KVStore:
    """``layers[i]`` is [max_num_seqs, max_model_len, width]: at each position all keys, then all values.

    Zeros at first: the operating system hands out pages only when they are written, and a masked position is
    finite (0 times a stale NaN would poison the row that looks past it).
    """

    def __init__(self, shapes: Sequence[KVShape], max_num_seqs: int, max_model_len: int, dtype: torch.dtype) -> None:
        self.shapes = list(shapes)
        self.layers = [torch.zeros(max_num_seqs, max_model_len, shape.width, dtype=dtype) for shape in shapes]

    def copy_rows(self, sources: NDArray[np.int64], targets: NDArray[np.int64], length: int) -> None:
        """Give the first ``length`` positions of rows ``sources`` [n] to ``targets`` [n]. All are read before any
        is written, so ``targets`` may permute ``sources``."""
        read, written = torch.from_numpy(sources), torch.from_numpy(targets)
        for layer in self.layers:
            seen = layer[:, :length]
            seen.index_copy_(0, written, seen.index_select(0, read))

    def wipe(self, row: int, start: int) -> None:
        """Zero a row from position ``start`` on."""
        for layer in self.layers:
            layer[row, start:].zero_()

    def copy_out(self, row: int, length: int) -> list[Tensor]:
        """The first ``length`` positions of a row, as they lie there: [length, width] of each layer."""
        return [layer[row, :length].clone() for layer in self.layers]

    def copy_in(self, row: int, kept: Sequence[Tensor], length: int) -> None:
        """The first ``length`` positions of what ``copy_out`` gave."""
        for layer, part in zip(self.layers, kept, strict=True):
            layer[row, :length] = part[:length]

    def read(self, row: int, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values [layers, heads, length, head_dim] of a row (copies). Needs equal layers."""
        keys, values = [], []
        for layer, shape in zip(self.layers, self.shapes, strict=True):
            part = layer[row, :length]
            cut = shape.heads * shape.key_dim
            keys.append(part[:, :cut].view(length, shape.heads, shape.key_dim).transpose(0, 1))
            values.append(part[:, cut:].view(length, shape.heads, shape.value_dim).transpose(0, 1))
        return torch.stack(keys), torch.stack(values)

    def write(self, row: int, keys: Tensor, values: Tensor) -> None:
        """Inverse of ``read``."""
        length = keys.shape[2]
        for layer, shape, key, value in zip(self.layers, self.shapes, keys, values, strict=True):
            cut = shape.heads * shape.key_dim
            layer[row, :length, :cut] = key.transpose(0, 1).reshape(length, cut)
            layer[row, :length, cut:] = value.transpose(0, 1).reshape(length, -1)
