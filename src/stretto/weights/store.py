"""Published weights in anonymous shared memory: stage, verify by reading back, hand out views.

The memory is a ``memfd``: it has no name, lives as long as a process holds it, and is freed by the kernel when the
last one is gone, however it died. Two slots: the next version is staged in one while engines load from the other.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
import xxhash
from torch import Tensor

from stretto.kernel.errors import WeightsError
from stretto.weights.layout import Entry, Layout
from stretto.weights.memory import HEADER_BYTES, SLOTS, allocate, stride

_HEADER = struct.Struct("<8sqq16s")
_MAGIC = b"stretto1"
_PIECE = 1 << 18
"""Elements copied, checked and hashed at a time: 1 MiB of float32 stays in the cache between the three."""


@dataclass(frozen=True, slots=True)
class Staged:
    """What a reader must find: ``version``, where each tensor lies, ``checksum`` (xxh3_128, hex) of the data as it
    lies in memory, seeded by the version; ``nbytes`` of the data."""

    version: int
    layout: Layout
    checksum: str
    nbytes: int


class WeightStore:
    """Two slots of ``slot_bytes`` each in shared memory.

    The owner ``create``s it and hands ``fd`` to its children (``multiprocessing.reduction.DupFd``), which
    ``attach``. One process writes; a slot must not be staged while somebody reads from it.
    """

    def __init__(self, fd: int, slot_bytes: int) -> None:
        self.fd = fd
        self.slot_bytes = slot_bytes
        self._stride = stride(slot_bytes)
        if os.fstat(fd).st_size != SLOTS * self._stride:
            raise WeightsError(f"shared memory holds {os.fstat(fd).st_size} bytes, not two slots of {slot_bytes}")
        self._map = mmap.mmap(fd, SLOTS * self._stride, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._bytes = memoryview(self._map)

    @classmethod
    def create(cls, slot_bytes: int) -> Self:
        """New shared memory. ``slot_bytes``: ``Layout.of(weights).nbytes``. Raises ``WeightsError`` without room."""
        return cls(allocate(slot_bytes), slot_bytes)

    @classmethod
    def attach(cls, fd: int, slot_bytes: int) -> Self:
        """The store behind a descriptor that another process created; takes the descriptor over."""
        return cls(fd, slot_bytes)

    def stage(self, slot: int, version: int, tensors: Mapping[str, Tensor]) -> Staged:
        """Copy ``tensors`` into ``slot`` as ``version``.

        Raises ``WeightsError`` if one isn't finite or they don't fit; the slot then holds no version.
        """
        layout = Layout.of(tensors)
        if layout.nbytes > self.slot_bytes:
            raise WeightsError(f"weights take {layout.nbytes} bytes, the slot has {self.slot_bytes}")
        base = self._base(slot)
        _HEADER.pack_into(self._bytes, base - HEADER_BYTES, b"\0" * 8, -1, 0, b"\0" * 16)
        digest = xxhash.xxh3_128(seed=version)
        hashed = 0
        for entry, tensor in zip(layout.entries, tensors.values(), strict=True):
            source = tensor.detach().reshape(-1)
            view = self._view(base, entry).view(-1)
            for start in range(0, entry.elements, _PIECE):
                piece = view[start : start + _PIECE]
                piece.copy_(source[start : start + _PIECE])
                if not _finite(piece):
                    raise WeightsError(f"version {version} isn't published: weight {entry.name!r} isn't finite")
                end = entry.offset + min(start + _PIECE, entry.elements) * entry.torch_dtype.itemsize
                digest.update(self._bytes[base + hashed : base + end])
                hashed = end
        digest.update(self._bytes[base + hashed : base + layout.nbytes])
        _HEADER.pack_into(self._bytes, base - HEADER_BYTES, _MAGIC, version, layout.nbytes, digest.digest())
        return Staged(version, layout, digest.hexdigest(), layout.nbytes)

    def read(self, slot: int, staged: Staged) -> dict[str, Tensor]:
        """Views (no copy) of the tensors in ``slot`` after reading every byte back against ``staged``.

        The views are valid until the slot is staged again; don't write to them. Raises ``WeightsError`` if the slot
        holds another version or the checksum differs.
        """
        base = self._base(slot)
        magic, version, nbytes, _ = _HEADER.unpack_from(self._bytes, base - HEADER_BYTES)
        if magic != _MAGIC or version != staged.version or nbytes != staged.nbytes:
            held = f"version {version} ({nbytes} bytes)" if magic == _MAGIC else "no version"
            raise WeightsError(f"slot {slot} holds {held}, expected version {staged.version} ({staged.nbytes} bytes)")
        found = xxhash.xxh3_128_hexdigest(self._bytes[base : base + nbytes], seed=staged.version)
        if found != staged.checksum:
            raise WeightsError(
                f"version {staged.version} in slot {slot} is corrupt: checksum {found}, published {staged.checksum}"
            )
        return {entry.name: self._view(base, entry) for entry in staged.layout.entries}

    def close(self) -> None:
        """Give the descriptor back. The mapping goes with the last view of it."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _base(self, slot: int) -> int:
        if not 0 <= slot < SLOTS:
            raise WeightsError(f"no slot {slot}: there are {SLOTS}")
        return slot * self._stride + HEADER_BYTES

    def _view(self, base: int, entry: Entry) -> Tensor:
        if entry.elements == 0:
            return torch.empty(entry.shape, dtype=entry.torch_dtype)
        flat = torch.frombuffer(self._map, dtype=entry.torch_dtype, count=entry.elements, offset=base + entry.offset)
        return flat.view(entry.shape)


def _finite(piece: Tensor) -> bool:
    """A finite sum proves it in one pass; only when that overflows is every element looked at."""
    return bool(piece.sum().isfinite()) or bool(piece.isfinite().all())
