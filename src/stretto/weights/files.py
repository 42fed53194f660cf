"""Weights through files: for engines that share a file system with the learner, but no memory.

A version is a directory of the run's: ``model.safetensors`` and, where an adapter is staged, the two files from which
PEFT loads it. Whatever reads these formats can load a version. It appears under its name when it is whole and on the
disk, and goes when it is released.
"""

from __future__ import annotations

import os
import shutil
import urllib.parse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

import xxhash

from stretto.data.identity import PolicyVersion
from stretto.kernel.errors import InvariantError, WeightsError
from stretto.weights.layout import Layout
from stretto.weights.staged import StagedWeights
from stretto.weights.transport import Place, Transport, described, together

if TYPE_CHECKING:
    from torch import Tensor

    from stretto.models.lora import Adapter

MODEL = "model.safetensors"


class Files(Transport):
    """One directory a version under the run's own; one process stages."""

    name: ClassVar[str] = "files"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._directory = Path(place.directory)

    @classmethod
    def open(cls, directory: Path) -> Self:
        """An empty directory: a run that was killed may have left versions."""
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        return cls(Place(str(directory.resolve())))

    def reserve(self, nbytes: int, versions: int) -> None:
        """Has the disk room for all of them?"""
        need, there = versions * nbytes, shutil.disk_usage(self._directory).free
        if need > there:
            raise WeightsError(
                f"weights.staged_versions = {versions}: {versions} versions of {nbytes} bytes don't fit into the "
                f"{there} bytes that are free where {self._directory} lies. Make room, or lower it (2 is the least)"
            )

    def close(self) -> None:
        """No version stays: the run's model is saved elsewhere."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def stage(
        self, version: PolicyVersion, tensors: Mapping[str, Tensor], adapter: Adapter | None = None
    ) -> StagedWeights:
        """Write them to a new directory, whole or not at all."""
        from stretto.weights.tensors import check_finite

        final = self._path(version)
        if final.exists():
            raise InvariantError(f"{version} is staged already")
        everything = together(tensors, adapter)
        check_finite(version, everything)
        layout, part = Layout.of(everything), final.with_name(f".{final.name}")
        digest, nbytes = xxhash.xxh3_128(seed=version.number), 0
        try:
            part.mkdir()
            for name, data in _contents(tensors, adapter):
                digest.update(data)
                nbytes += len(data)
                _write(part / name, data)
            _sync(part)
            part.rename(final)
            _sync(self._directory)
        except OSError as error:
            shutil.rmtree(part, ignore_errors=True)
            raise WeightsError(
                f"{version} can't be written to {self._directory}: {error.strerror or error}. Make room (or fix what "
                "is wrong there); engines keep the version before"
            ) from error
        where = {"directory": str(final)}
        return StagedWeights(version, self.name, where, layout, digest.hexdigest(), nbytes, described(adapter))

    def release(self, version: PolicyVersion) -> None:
        """Remove its files."""
        try:
            shutil.rmtree(self._path(version))
        except FileNotFoundError as error:
            raise InvariantError(f"{version} can't be released: it isn't staged") from error

    def fetch(self, staged: StagedWeights) -> dict[str, Tensor]:
        """Read the files and compare every byte."""
        from safetensors.torch import load

        self.check_mine(staged)
        directory, digest = Path(str(staged.where["directory"])), xxhash.xxh3_128(seed=staged.version.number)
        contents = []
        for name in _names(staged):
            try:
                contents.append((directory / name).read_bytes())
            except OSError as error:
                raise WeightsError(
                    f"{staged.version}: {directory / name} can't be read: {error.strerror or error}"
                ) from error
            digest.update(contents[-1])
        if digest.hexdigest() != staged.checksum:
            raise WeightsError(
                f"{staged.version} in {directory} is corrupt: checksum {digest.hexdigest()}, published "
                f"{staged.checksum}"
            )
        found: dict[str, Tensor] = {}
        for name, data in zip(_names(staged), contents, strict=True):
            found |= load(data) if name.endswith(".safetensors") else {}
        return {entry.name: found[entry.name] for entry in staged.layout.entries}

    def _path(self, version: PolicyVersion) -> Path:
        return self._directory / f"{urllib.parse.quote(version.policy, safe='')}-{version.number:06d}"


def _contents(tensors: Mapping[str, Tensor], adapter: Adapter | None) -> Iterator[tuple[str, bytes]]:
    """The files of a version and what is in them."""
    from safetensors.torch import save

    from stretto.models.lora import adapter_files

    if tensors or adapter is None:
        yield MODEL, save({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, {"format": "pt"})
    if adapter is not None:
        yield from adapter_files(adapter)


def _names(staged: StagedWeights) -> list[str]:
    """The same files, in the same order."""
    from stretto.models.lora import ADAPTER_CONFIG, ADAPTER_TENSORS

    merged = [MODEL] if "merged" in staged.parts else []
    return merged if staged.adapter is None else [*merged, ADAPTER_TENSORS, ADAPTER_CONFIG]


def _write(path: Path, data: bytes) -> None:
    """Write a file, and wait until it is on the disk."""
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    """Wait until the names in it are on the disk."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
