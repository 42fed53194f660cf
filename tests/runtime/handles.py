"""Engine handles for tests: they do nothing by themselves."""

from __future__ import annotations

from collections.abc import Sequence

from stretto.data.identity import PolicyVersion
from stretto.rollout.capabilities import Capabilities
from stretto.rollout.types import Request
from stretto.runtime.workers.base import EngineHandle, Loaded
from stretto.weights.layout import Layout
from stretto.weights.staged import StagedWeights


def staged_weights(number: int) -> StagedWeights:
    """Weights of this version, which nobody looks at."""
    return StagedWeights(PolicyVersion(number=number), "none", {}, Layout((), 0), "", 0)


class Idle(EngineHandle):
    """Notes what it is given, and answers nothing."""

    capabilities = Capabilities(in_flight=frozenset({"abort"}))

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.added: list[list[Request]] = []
        self.aborted: list[int] = []

    async def start(self) -> None:
        pass

    def add(self, requests: Sequence[Request]) -> None:
        self.added.append(list(requests))

    def abort(self, ids: Sequence[int]) -> None:
        self.aborted += ids

    async def load(self, weights: StagedWeights, in_flight: str) -> Loaded:
        return Loaded(weights.version.number, 0.0)

    async def close(self) -> None:
        pass
