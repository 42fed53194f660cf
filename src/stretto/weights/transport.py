"""How weights get from the learner to engines, however far these are: stage, fetch, release.

A transport is one class with an object in each process that takes part. The run's own (``open``, ``reserve``,
``close``) makes what the others need, the learner's stages and releases versions, each engine's fetches them. Nobody
else knows how: the loop passes on what ``stage`` answers.
"""

from __future__ import annotations

import abc
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from stretto.data.identity import PolicyVersion
from stretto.kernel.components import load_object
from stretto.kernel.errors import ConfigError, WeightsError, did_you_mean
from stretto.weights.staged import StagedAdapter, StagedWeights

if TYPE_CHECKING:
    from torch import Tensor

    from stretto.models.lora import Adapter

Stage = Callable[[PolicyVersion, "Mapping[str, Tensor]", "Adapter | None"], StagedWeights]
"""What a learner calls with its version, its weights and its adapter: a transport's ``stage``."""
SETTING = "weights.transport"
DIRECTORY = "weights"
"""In a run's directory: where a transport may put versions while the run goes on."""
BUILT_IN = {"shared-memory": "stretto.weights.memory:SharedMemory", "files": "stretto.weights.files:Files"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run's weights may lie. Plain data: the run gives it to its workers."""

    directory: str
    """A directory of the run for this alone; it is there if the transport makes it."""
    descriptors: tuple[int, ...] = ()
    """File descriptors that every worker on this machine inherits under the same numbers."""


class Transport(abc.ABC):
    """Base of all transports. ``place``: what the run's object opened, for the workers' objects to join.

    One process stages, any number fetch. Importing a transport's module must not import torch: the run's own process
    does without.
    """

    name: ClassVar[str]

    def __init__(self, place: Place) -> None:
        self.place = place

    # the run's side

    @classmethod
    def open(cls, directory: Path) -> Self:
        """Before any worker starts: make what all share. What an earlier run left in ``directory`` is gone then."""
        return cls(Place(str(directory)))

    def reserve(self, nbytes: int, versions: int) -> None:  # noqa: B027 (nothing to do is an answer)
        """Before anything is staged: there must be room for so many versions of ``nbytes`` each. Raises
        ``WeightsError`` without."""

    def close(self) -> None:  # noqa: B027
        """After the last worker is gone, however it ended: leave nothing behind."""

    # the learner's side

    @abc.abstractmethod
    def stage(
        self, version: PolicyVersion, tensors: Mapping[str, Tensor], adapter: Adapter | None = None
    ) -> StagedWeights:
        """Copy these tensors, which are live, to where engines can fetch them. ``adapter``: one that is staged beside
        the matrices that it is merged into, or instead of them (then ``tensors`` is empty).

        Raises ``WeightsError`` if one isn't finite, or without room; nothing is staged then and what was stays.
        """

    @abc.abstractmethod
    def release(self, version: PolicyVersion) -> None:
        """Nobody fetches this version any more: its place may be used again."""

    # an engine's side

    @abc.abstractmethod
    def fetch(self, staged: StagedWeights) -> dict[str, Tensor]:
        """The tensors, read back and equal in every byte to what was staged; valid until the version is released.
        Don't write to them. Raises ``WeightsError`` if they aren't there or differ."""

    def check_mine(self, staged: StagedWeights) -> None:
        """``WeightsError`` unless this transport staged it."""
        if staged.transport != self.name:
            raise WeightsError(f"{staged.version} was staged by {staged.transport!r}; {self.name!r} can't fetch it")


def described(adapter: Adapter | None) -> StagedAdapter | None:
    """What ``StagedWeights`` says of an adapter."""
    return None if adapter is None else StagedAdapter(tuple(adapter.tensors), adapter.config)


def together(tensors: Mapping[str, Tensor], adapter: Adapter | None) -> Mapping[str, Tensor]:
    """All tensors of a version, by name. ``WeightsError`` if a matrix and a part of the adapter share one."""
    if adapter is None:
        return tensors
    if both := sorted(tensors.keys() & adapter.tensors.keys()):
        raise WeightsError(f"{both[0]!r} names both a weight and a part of its adapter")
    return {**tensors, **adapter.tensors}


def find_transport(name: str) -> type[Transport]:
    """The built-in transport of this name, or the class at ``module:Class``. Raises ``ConfigError``."""
    if ":" not in name:
        if name not in BUILT_IN:
            raise ConfigError(f"{SETTING}: unknown transport {name!r}; {did_you_mean(name, BUILT_IN)}")
        module, _, attribute = BUILT_IN[name].partition(":")
        found: object = getattr(importlib.import_module(module), attribute)
    else:
        found = load_object(name, SETTING)
    if not (inspect.isclass(found) and issubclass(found, Transport)):
        raise ConfigError(f"{SETTING} = {name!r}: not a subclass of stretto.weights.transport.Transport")
    if missing := sorted(found.__abstractmethods__):
        raise ConfigError(f"{SETTING} = {name!r}: this class lacks {', '.join(f'`{m}`' for m in missing)}")
    if not hasattr(found, "name"):
        found.name = name
    return found
