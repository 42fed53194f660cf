"""What is said of weights that are staged: enough to find them, to verify them, and to know what they hold."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import TypeVar

from stretto.data.identity import PolicyVersion
from stretto.weights.layout import Layout

T = TypeVar("T")
Room = Coroutine[object, None, None]
"""Is awaited before a version is staged: until there is room for it."""


@dataclass(frozen=True, slots=True)
class StagedAdapter:
    """A low-rank adapter among the tensors of a version: which they are (by PEFT's names), and PEFT's description of
    it (rank, alpha, targets; what ``adapter_config.json`` holds)."""

    names: tuple[str, ...]
    config: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """A version as a transport holds it. Plain data, for any process and any machine."""

    version: PolicyVersion
    transport: str
    """The name of the transport, which alone can fetch it."""
    where: Mapping[str, str | int]
    """Where it lies: the transport's own affair."""
    layout: Layout
    """Its tensors."""
    checksum: str
    """xxh3-128 of the data in hexadecimal digits, seeded by the version's number. Empty: nothing to verify."""
    nbytes: int
    """Bytes of the data: what a fetch reads."""
    adapter: StagedAdapter | None = None
    """The adapter, if it was staged. The other tensors, if there are any, have it merged in."""

    @property
    def parts(self) -> frozenset[str]:
        """What is staged: ``merged`` matrices, the ``adapter``, or both."""
        names = () if self.adapter is None else self.adapter.names
        found = {"merged"} if len(self.layout.entries) > len(names) or not names else set()
        return frozenset(found | ({"adapter"} if names else set()))

    def merged(self, tensors: Mapping[str, T]) -> dict[str, T]:
        """Of what was fetched: the base model's parameters that changed, by its names."""
        names = () if self.adapter is None else frozenset(self.adapter.names)
        return {name: tensor for name, tensor in tensors.items() if name not in names}


@dataclass(frozen=True, slots=True)
class Staging:
    """Weights that are staged now; that took ``seconds``."""

    staged: StagedWeights
    seconds: float
