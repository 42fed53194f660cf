"""Weights through shared memory: for engines on the learner's machine.

The memory is a ``memfd``: it has no name, lives as long as a process holds it, and is freed by the kernel when the
last one is gone, however it died. Each version lies in a place of its own. A released place is used again, and the
memory grows when none is free, so that it holds as many versions as are alive at once.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from stretto.data.identity import PolicyVersion
from stretto.kernel.errors import InvariantError, WeightsError
from stretto.weights.layout import Layout
from stretto.weights.staged import StagedWeights
from stretto.weights.transport import Place, Transport, described, together

if TYPE_CHECKING:
    from torch import Tensor

    from stretto.models.lora import Adapter

HEADER_BYTES = 4096
"""Of the page before the data of each place."""
_HEADER = struct.Struct("<8sqq16s")
_MAGIC = b"stretto2"
_AT_ONCE = 2
"""Places that are there from the start: one to read from, one to write to."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A place: ``nbytes`` from byte ``offset`` on, its header included."""

    offset: int
    nbytes: int


def place_bytes(nbytes: int) -> int:
    """What a version of ``nbytes`` takes: a header page and the data in whole pages."""
    return HEADER_BYTES + -(-nbytes // 4096) * 4096


class SharedMemory(Transport):
    """Places in one piece of shared memory, which the run creates and its workers inherit. One process stages."""

    name: ClassVar[str] = "shared-memory"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        (self.fd,) = place.descriptors
        self._map: mmap.mmap | None = None
        self._used: dict[PolicyVersion, _Span] = {}
        self._free: list[_Span] = []
        self._end = 0

    @classmethod
    def open(cls, directory: Path) -> Self:
        """New memory, of no size yet."""
        return cls(Place(str(directory), (os.memfd_create("stretto-weights", os.MFD_CLOEXEC),)))

    def reserve(self, nbytes: int, versions: int) -> None:
        """Room for the first two versions now; is there enough for all?"""
        need, there = versions * place_bytes(nbytes), available_bytes()
        if there is not None and need > there:
            raise WeightsError(
                f"weights.staged_versions = {versions}: {versions} versions of {nbytes} bytes don't fit into the "
                f"{there} bytes of memory that are available. Lower it (2 is the least), or take a smaller model"
            )
        self._grow(min(versions, _AT_ONCE) * place_bytes(nbytes))

    def close(self) -> None:
        """Give the descriptor back; the memory goes with its last holder."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def stage(
        self, version: PolicyVersion, tensors: Mapping[str, Tensor], adapter: Adapter | None = None
    ) -> StagedWeights:
        """Copy them into a free place, or into a new one."""
        from stretto.weights.tensors import copy_in

        if version in self._used:
            raise InvariantError(f"{version} is staged already")
        everything = together(tensors, adapter)
        layout = Layout.of(everything)
        span = self._take(place_bytes(layout.nbytes))
        memory = self._memory(span.offset + span.nbytes)
        try:
            digest = copy_in(memory, span.offset + HEADER_BYTES, layout, everything, version)
        except BaseException:
            self._free.append(span)
            raise
        _HEADER.pack_into(memory, span.offset, _MAGIC, version.number, layout.nbytes, digest)
        self._used[version] = span
        where = {"offset": span.offset}
        return StagedWeights(version, self.name, where, layout, digest.hex(), layout.nbytes, described(adapter))

    def release(self, version: PolicyVersion) -> None:
        """Its place is free, and holds no version."""
        span = self._used.pop(version, None)
        if span is None:
            raise InvariantError(f"{version} can't be released: it isn't staged")
        _HEADER.pack_into(self._memory(span.offset + span.nbytes), span.offset, b"\0" * 8, -1, 0, b"\0" * 16)
        self._free.append(span)

    def fetch(self, staged: StagedWeights) -> dict[str, Tensor]:
        """Views (no copy) of what lies there, after reading back every byte."""
        from stretto.weights.tensors import digest_of, views

        self.check_mine(staged)
        offset, wanted = int(staged.where["offset"]), staged.version
        memory = self._memory(offset + place_bytes(staged.nbytes))
        magic, number, nbytes, _ = _HEADER.unpack_from(memory, offset)
        if magic != _MAGIC or number != wanted.number or nbytes != staged.nbytes:
            held = f"version {number} ({nbytes} bytes)" if magic == _MAGIC else "no version"
            raise WeightsError(
                f"shared memory at byte {offset} holds {held}, expected {wanted} ({staged.nbytes} bytes)"
            )
        found = digest_of(memory, offset + HEADER_BYTES, nbytes, wanted).hex()
        if found != staged.checksum:
            raise WeightsError(f"{wanted} in shared memory is corrupt: checksum {found}, published {staged.checksum}")
        return views(memory, offset + HEADER_BYTES, staged.layout)

    def _take(self, nbytes: int) -> _Span:
        """The smallest free place that is large enough, or a new one behind the last."""
        fitting = [span for span in self._free if span.nbytes >= nbytes]
        if fitting:
            best = min(fitting, key=lambda span: (span.nbytes, span.offset))
            self._free.remove(best)
            return best
        span = _Span(self._end, nbytes)
        self._grow(span.offset + span.nbytes)
        self._end = span.offset + span.nbytes
        return span

    def _grow(self, size: int) -> None:
        before = os.fstat(self.fd).st_size
        if size <= before:
            return
        try:
            os.posix_fallocate(self.fd, before, size - before)  # fail here rather than with SIGBUS at a later write
        except OSError as error:
            raise WeightsError(
                f"no shared memory for another {size - before} bytes of weights: {error.strerror}"
            ) from error

    def _memory(self, end: int) -> mmap.mmap:
        """The memory up to ``end`` at least. One that has grown is mapped anew; views of the old mapping stay good."""
        if self._map is None or len(self._map) < end:
            size = os.fstat(self.fd).st_size
            if size < end:
                raise WeightsError(f"the shared memory has {size} bytes; the version would end at {end}")
            self._map = mmap.mmap(self.fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        return self._map


def available_bytes() -> int | None:
    """Memory that could still be used here, by the kernel and by the control group; None if neither says."""
    found = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    found += [int(line) for line in _lines("/sys/fs/cgroup/memory.max") if line.isdigit()]
    return min(found, default=None)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
