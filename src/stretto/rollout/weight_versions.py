"""The weights that an engine holds: the newest version, and older ones for as long as somebody needs them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import xxhash
from torch import Tensor

from stretto.kernel.errors import StrettoError, WeightsError
from stretto.models.forward import Forward, Weights


class WeightVersions:
    """``newest`` serves unpinned requests. A version that was kept stays until ``free``, and any for as long as a
    request samples from it."""

    def __init__(self, newest: Forward, keep_initial: bool) -> None:
        self.newest = newest
        self.version: int | None = None
        self._older: dict[int, Forward] = {}
        self._kept: set[int] = set()
        self._keep_initial = keep_initial
        self._initial: dict[str, Tensor] | None = None

    def serve(self, version: int) -> None:
        """What ``newest`` holds is ``version``: the first one of this engine."""
        self.version = version
        if self._keep_initial:
            self._initial = {name: value.clone() for name, value in self.newest.parameters().items()}

    def advance(self, version: int, weights: Weights, needed: bool, keep: bool) -> None:
        """Make ``version`` the newest. A copy of the one before stays while a request needs it (``needed``: one does),
        or until it is freed (``keep``)."""
        if keep and self.version is not None:
            self._kept.add(self.version)
        if (keep or needed) and self.version is not None:
            self._older[self.version] = self.newest
            self.newest = self.newest.clone()
        self.newest.copy_in(weights)
        if self.version is None:
            self.serve(version)
        self.version = version

    def forward(self, version: int) -> Forward:
        """The weights of a held version."""
        return self.newest if version == self.version else self._older[version]

    def check(self, version: int, request: int) -> None:
        """Raise ``StrettoError`` unless ``version`` is held."""
        if version not in self.versions():
            raise StrettoError(
                f"engine: request {request} is pinned to version {version}, but only {self.versions()} are held; "
                "publish it first, or don't free it before the last request that names it has ended"
            )

    def versions(self) -> list[int]:
        """Held versions, ascending."""
        return sorted([*self._older, *([] if self.version is None else [self.version])])

    def free(self, versions: Iterable[int]) -> None:
        """The owner needs these no longer."""
        self._kept.difference_update(versions)

    @property
    def kept(self) -> bool:
        """Is any version kept for the owner?"""
        return bool(self._kept)

    @property
    def holds_older(self) -> bool:
        """Is there anything that ``collect`` could free?"""
        return bool(self._older)

    def collect(self, in_use: set[int]) -> None:
        """Drop older versions that are neither kept nor in use."""
        for version in set(self._older) - in_use - self._kept:
            del self._older[version]

    def checksum(self) -> str:
        """xxh3-64 of the newest weights, read back: names and bytes, sorted by name."""
        digest = xxhash.xxh3_64()
        for name, value in sorted(self.newest.parameters().items()):
            digest.update(name.encode())
            digest.update(value.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def distance_to_initial(self) -> float:
        """|| w - w_first || / || w_first || over all parameters, w_first being the first version served here."""
        if self._initial is None:
            raise WeightsError("engine: no initial weights to compare with; build it with keep_initial=True")
        moved = norm = 0.0
        for name, value in self.newest.parameters().items():
            first = self._initial[name]
            moved += float((value - first).double().pow(2).sum())
            norm += float(first.double().pow(2).sum())
        return float((moved / norm) ** 0.5) if norm else 0.0
