"""Tensors in flat memory: copied in, checked and hashed in one pass; handed out as views."""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import torch
import xxhash
from torch import Tensor

from stretto.data.identity import PolicyVersion
from stretto.kernel.errors import WeightsError
from stretto.weights.layout import Entry, Layout

_PIECE = 1 << 18
"""Elements copied, checked and hashed at a time: 1 MiB of float32 stays in the cache between the three."""


def copy_in(
    memory: mmap.mmap, base: int, layout: Layout, tensors: Mapping[str, Tensor], version: PolicyVersion
) -> bytes:
    """Copy ``tensors`` to byte ``base`` of ``memory`` as ``layout`` says; their digest. Raises ``WeightsError`` if one
    isn't finite."""
    digest = xxhash.xxh3_128(seed=version.number)
    hashed = 0
    with memoryview(memory) as data:
        for entry, tensor in zip(layout.entries, tensors.values(), strict=True):
            source = tensor.detach().reshape(-1)
            place = _view(memory, base, entry).view(-1)
            for start in range(0, entry.elements, _PIECE):
                piece = place[start : start + _PIECE]
                piece.copy_(source[start : start + _PIECE])
                if not _finite(piece):
                    raise _not_finite(version, entry.name)
                end = entry.offset + min(start + _PIECE, entry.elements) * entry.itemsize
                digest.update(data[base + hashed : base + end])
                hashed = end
        digest.update(data[base + hashed : base + layout.nbytes])
    return digest.digest()


def digest_of(memory: mmap.mmap, base: int, nbytes: int, version: PolicyVersion) -> bytes:
    """The digest of what lies there."""
    with memoryview(memory) as data:
        return xxhash.xxh3_128_digest(data[base : base + nbytes], seed=version.number)


def views(memory: mmap.mmap, base: int, layout: Layout) -> dict[str, Tensor]:
    """The tensors that lie at byte ``base``, without a copy."""
    return {entry.name: _view(memory, base, entry) for entry in layout.entries}


def check_finite(version: PolicyVersion, tensors: Mapping[str, Tensor]) -> None:
    """Raise ``WeightsError`` for the first tensor that isn't finite."""
    for name, tensor in tensors.items():
        if not _finite(tensor.detach()):
            raise _not_finite(version, name)


def _view(memory: mmap.mmap, base: int, entry: Entry) -> Tensor:
    dtype: torch.dtype = getattr(torch, entry.dtype)
    if entry.elements == 0:
        return torch.empty(entry.shape, dtype=dtype)
    flat = torch.frombuffer(memory, dtype=dtype, count=entry.elements, offset=base + entry.offset)
    return flat.view(entry.shape)


def _finite(piece: Tensor) -> bool:
    """A finite sum proves it in one pass; only when that overflows is every element looked at."""
    return bool(piece.sum().isfinite()) or bool(piece.isfinite().all())


def _not_finite(version: PolicyVersion, name: str) -> WeightsError:
    return WeightsError(f"{version} isn't published: weight {name!r} isn't finite")
