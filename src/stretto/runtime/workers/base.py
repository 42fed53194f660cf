"""What the loop asks of a worker: the contracts of engine and learner handles.

An engine handle holds one engine, wherever that computes: in this process, in another one, behind a server. It is told
what to do, and tells its ``sink`` what happened; requests, their futures, their placement and the versions that groups
were promised are the engine pool's affair (``runtime.engine_pool``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stretto.data.modes import InFlight
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.data.trajectory import Completion
from stretto.kernel.errors import StrettoError
from stretto.learner.result import Floats, ForwardBackwardResult, OptimResult, StepResult
from stretto.rollout.capabilities import Capabilities
from stretto.rollout.types import ExportedRequest, Occupancy, Request
from stretto.weights.staged import Room, StagedWeights, Staging

UNTOLD = Occupancy()


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine's answer to ``load``: the version that it now holds and how long it paused for it (seconds)."""

    version: int
    seconds: float


class EngineSink(Protocol):
    """Whom an engine handle tells what happened, from the event loop's thread. Times are those of the loop's clock."""

    def first_tokens(self, requests: Iterable[int]) -> None:
        """These requests have their first token; told before they finish. Optional."""
        ...

    def finished(self, completions: Sequence[tuple[int, Completion]]) -> None:
        """Requests that are over, with everything sampled for them. Finish ``aborted``: they go on as new requests."""
        ...

    def busy(
        self,
        start: float,
        end: float,
        tokens: float,
        prefill: int,
        steps: float,
        *,
        occupancy: Occupancy = UNTOLD,
        joins: bool = True,
    ) -> None:
        """It computed from ``start`` to ``end``: ``tokens`` in ``steps`` decode steps, and ``prefill`` tokens of
        prompts. ``occupancy``: at the end. ``joins``: with what comes at once before and after. Optional."""
        ...

    def idle(self) -> None:
        """Nothing more joins what it computed. Optional."""
        ...

    def loaded(self, version: int) -> None:
        """It serves ``version`` from now on. Optional: the answer to ``load`` says it, too, a little later."""
        ...

    def died(self, error: BaseException, *, returns: bool = False) -> bool:
        """It is gone with all that it held. ``returns``: a new one comes up, which is told by ``up``; False if that is
        no use, as groups were promised versions that are lost: the run ends."""
        ...

    def up(self) -> None:
        """It came up again and can load weights."""
        ...


class EngineHandle(ABC):
    """One engine of a run. ``name`` is its own in the run; ``sink`` is set before anything is asked.

    A kind of engine is a subclass. Its constructor takes a ``kinds.EngineSpec`` and, as keywords, what
    ``engine.options`` may say; ``capabilities`` says what it can do, and what it can't, no run that starts asks for.
    Nothing here blocks the event loop: what takes long is awaited. An engine serves nothing before its first ``load``.
    """

    capabilities: Capabilities
    """Of the class, so that a run which needs more is refused before anything starts."""

    at_once: bool = False
    """Hand each request over when it is made, rather than together with the others of that turn of the event loop?"""
    sink: EngineSink

    def __init__(self, name: str) -> None:
        self.name = name

    def join(self, sink: EngineSink) -> None:
        """Tell this sink from now on."""
        self.sink = sink

    @abstractmethod
    async def start(self) -> None:
        """Bring it up; returns when it can load weights."""

    @abstractmethod
    def add(self, requests: Sequence[Request]) -> None:
        """Take these requests; the sink hears of their end, in any order."""

    @abstractmethod
    def abort(self, ids: Sequence[int]) -> None:
        """Stop requests whose answers nobody needs. Ids that aren't here have finished."""

    @abstractmethod
    async def load(self, weights: StagedWeights, in_flight: InFlight) -> Loaded:
        """Fetch these weights and serve them from between two steps on; ``in_flight``: what becomes of running
        requests (``InFlight``). Raises ``WeightsError`` if they aren't what was staged: the old
        version stays then."""

    @abstractmethod
    async def close(self) -> None:
        """End it and leave nothing behind."""

    async def snapshot(self, *, settle: bool = False, pause: bool = False) -> dict[int, Completion]:
        """What running requests have sampled so far, by request id. ``settle``: between two steps, once everything
        that finished before is delivered. ``pause`` (needs ``settle``): it samples nothing more until it loads
        weights."""
        raise self._cannot("tell what running requests have sampled")

    def free(self, versions: Sequence[int]) -> None:
        """Nobody will ask for these versions any more."""
        raise self._cannot("hold versions for groups that are pinned to one")

    async def export(self, id: int) -> ExportedRequest:
        """Take a running request out, with what it has, for ``import_`` in another engine of this kind. Raises
        ``StrettoError`` if it isn't here (any more)."""
        raise self._cannot("hand over a running request")

    async def import_(self, state: ExportedRequest) -> None:
        """Go on with a request of another engine that holds the same version. Raises ``StrettoError``."""
        raise self._cannot("take over a running request")

    def pause(self, ids: Sequence[int]) -> None:
        """Keep these requests without advancing them, until ``resume``."""
        raise self._cannot("pause requests")

    def resume(self, ids: Sequence[int]) -> None:
        """Let paused requests go on."""
        raise self._cannot("pause requests")

    async def distance(self) -> float:
        """Relative L2 distance of its weights to the first ones."""
        raise self._cannot("tell how far its weights have moved")

    def report_busy(self) -> None:
        """Tell the sink now what was computed so far and isn't told yet (a learner step is over)."""
        return

    def _cannot(self, what: str) -> StrettoError:
        return StrettoError(f"{self.name}: an engine of kind {type(self).__name__} can't {what}")


class LearnerHandle(Protocol):
    """The learner as the loop holds it."""

    async def start(self) -> None: ...

    async def step(self, columns: Columns, room: Room) -> tuple[StepResult, Awaitable[Staging] | None]:
        """Train on a batch. On success its weights are staged once there is ``room``, and the second result gives them
        then: the next step need not wait for it. None: the step was skipped."""
        ...

    async def forward_backward(
        self, columns: Columns, totals: Totals | None = None
    ) -> ForwardBackwardResult[Mapping[str, float]]:
        """Add the gradient of these trajectories to that of the optimizer step whose denominators ``totals`` are
        (``learner.turns.totals_of``); None: they are all of it."""
        ...

    async def optim_step(self, lr: float | None = None) -> OptimResult[Mapping[str, float]]:
        """Update with what was accumulated; the weights are the next version then. ``lr`` None: by the schedule."""
        ...

    async def score(self, columns: Columns, version: int | None = None) -> Floats:
        """Log-probability of each policy token of these segments, flat, under the weights of ``version``, or of the
        version that sampled it (None)."""
        ...

    def release(self, before: int) -> None:
        """Versions below ``before`` have ended: nothing of theirs will be scored any more."""
        ...

    async def stage(self) -> Staging:
        """Stage the current weights."""
        ...

    def release_weights(self, staged: StagedWeights) -> None:
        """Nobody will fetch these any more."""

    async def save(self, directory: Path) -> None: ...

    async def load(self, directory: Path) -> int:
        """Restore; returns the version."""
        ...

    async def save_model(self, directory: Path) -> None:
        """Write the policy in Transformers format."""
        ...

    async def close(self) -> None: ...
