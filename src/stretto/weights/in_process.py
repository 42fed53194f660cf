"""Weights that stay where they are: learner and engines in one process (rehearsals, inline workers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from stretto.data.identity import PolicyVersion
from stretto.kernel.errors import InvariantError, WeightsError
from stretto.weights.layout import Layout
from stretto.weights.staged import StagedWeights
from stretto.weights.transport import Place, Transport, described, together

if TYPE_CHECKING:
    from torch import Tensor

    from stretto.models.lora import Adapter


class InProcess(Transport):
    """Copies of the tensors by version. Nothing is sent, so there is nothing to verify."""

    name: ClassVar[str] = "in-process"

    def __init__(self) -> None:
        super().__init__(Place(""))
        self._staged: dict[PolicyVersion, dict[str, Tensor]] = {}

    def stage(
        self, version: PolicyVersion, tensors: Mapping[str, Tensor], adapter: Adapter | None = None
    ) -> StagedWeights:
        """Copy them."""
        if version in self._staged:
            raise InvariantError(f"{version} is staged already")
        everything = together(tensors, adapter)
        self._staged[version] = {name: tensor.clone() for name, tensor in everything.items()}
        return StagedWeights(version, self.name, {}, Layout.of(everything), "", 0, described(adapter))

    def release(self, version: PolicyVersion) -> None:
        """Forget the copies."""
        if self._staged.pop(version, None) is None:
            raise InvariantError(f"{version} can't be released: it isn't staged")

    def fetch(self, staged: StagedWeights) -> dict[str, Tensor]:
        """The copies."""
        self.check_mine(staged)
        found = self._staged.get(staged.version)
        if found is None:
            raise WeightsError(f"{staged.version} isn't staged here")
        return found
