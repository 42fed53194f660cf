"""What the orchestrator and a worker process say to each other, each message a type of its own.

The orchestrator sends ``Letter``s: an ``Order``, which nobody answers, or a numbered ``Question[T]``, whose ``Answer``
holds a T (or which is ``Refused``). A worker tells the rest by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from stretto.config.schema import RunConfig
from stretto.data.identity import PolicyVersion
from stretto.data.modes import InFlight
from stretto.data.schema import Columns
from stretto.data.totals import Totals
from stretto.learner.result import Floats, ForwardBackwardResult, OptimResult, StepResult
from stretto.rollout.types import ExportedRequest, Occupancy
from stretto.runtime.workers.base import Loaded
from stretto.runtime.workers.requests import Packed
from stretto.weights.staged import StagedWeights, Staging
from stretto.weights.transport import Place

T = TypeVar("T")


class Order:
    """What a worker is told and doesn't answer."""

    __slots__ = ()


class Question(Generic[T]):
    """What a worker is asked; it answers with a T."""

    __slots__ = ()


class Letter(NamedTuple):
    """One message of the orchestrator. ``number``: of a question, which its answer repeats; None: an order."""

    number: int | None
    content: Order | Question[object]


@dataclass(slots=True)
class WorkerSpec(Question[int]):
    """The first message: what the worker is to be. It answers with its process id once it is.

    ``transport``: name and place of the weights' way; ``keep_versions``: an engine holds each version until it is
    freed; ``max_steps`` ends the learner's schedule."""

    config: RunConfig
    model_dir: str
    eos_ids: tuple[int, ...]
    max_steps: int
    transport: tuple[str, Place]
    keep_versions: bool


@dataclass(slots=True)
class Close(Order):
    """End."""


# to an engine


@dataclass(slots=True)
class Add(Order):
    """Take these requests."""

    requests: Packed


@dataclass(slots=True)
class Abort(Order):
    """Stop requests."""

    ids: Sequence[int]


@dataclass(slots=True)
class Free(Order):
    """Nobody will ask for these versions."""

    versions: Sequence[int]


@dataclass(slots=True)
class Pause(Order):
    """Keep these requests without advancing them."""

    ids: Sequence[int]


@dataclass(slots=True)
class Resume(Order):
    """Let paused requests go on."""

    ids: Sequence[int]


@dataclass(slots=True)
class Export(Question[ExportedRequest]):
    """Hand a running request over."""

    id: int


@dataclass(slots=True)
class Import(Question[None]):
    """Take a running request over."""

    state: ExportedRequest


@dataclass(slots=True)
class Load(Question[Loaded]):
    """Fetch these weights and serve them."""

    weights: StagedWeights
    in_flight: InFlight


@dataclass(slots=True)
class Snapshot(Question[Columns]):
    """What running requests have sampled (``data.columns.unpack_completions``). ``pause``: sample no more until the
    next load."""

    pause: bool


@dataclass(slots=True)
class Distance(Question[float]):
    """How far the weights have moved."""


# to the learner


@dataclass(slots=True)
class Step(Question[StepResult]):
    """Train on a batch."""

    columns: Columns


@dataclass(slots=True)
class StageStep(Order):
    """Stage what the latest step made, unless it was skipped: ``Staged`` tells of it."""


@dataclass(slots=True)
class ForwardBackward(Question[ForwardBackwardResult[Mapping[str, float]]]):
    """Accumulate the gradient of these trajectories; ``totals`` None: they are all of the optimizer step."""

    columns: Columns
    totals: Totals | None


@dataclass(slots=True)
class OptimStep(Question[OptimResult[Mapping[str, float]]]):
    """Update; ``lr`` None: by the schedule."""

    lr: float | None


@dataclass(slots=True)
class Score(Question[Floats]):
    """Log-probabilities of these segments' policy tokens; ``version`` None: under the version that sampled each."""

    columns: Columns
    version: int | None


@dataclass(slots=True)
class Release(Order):
    """Versions below ``before`` have ended."""

    before: int


@dataclass(slots=True)
class Stage(Question[Staging]):
    """Stage the current weights."""


@dataclass(slots=True)
class ReleaseWeights(Order):
    """Nobody will fetch this version."""

    version: PolicyVersion


@dataclass(slots=True)
class Save(Question[None]):
    """Write a checkpoint."""

    directory: str


@dataclass(slots=True)
class LoadCheckpoint(Question[int]):
    """Restore; the answer is the version."""

    directory: str


@dataclass(slots=True)
class SaveModel(Question[None]):
    """Write the policy in Transformers format."""

    directory: str


# from a worker


@dataclass(slots=True)
class Phase:
    """What it does now, for its deadline and its obituary."""

    name: str


@dataclass(slots=True)
class Answer:
    """To question ``number``."""

    number: int | None
    value: object


@dataclass(slots=True)
class Refused:
    """Question ``number`` failed; the worker lives on."""

    number: int | None
    error: BaseException


@dataclass(slots=True)
class Dying:
    """It ends; ``error``: why, if that is an error of ours (else its output tells)."""

    error: BaseException | None


@dataclass(slots=True)
class Span:
    """When an engine computed, in seconds since it began: ``tokens`` in ``steps`` decode steps, ``prefill`` tokens of
    prompts; ``occupancy``: at the end."""

    since_s: float
    until_s: float
    tokens: int
    prefill: int
    steps: int
    occupancy: Occupancy


@dataclass(slots=True)
class EngineReport:
    """Of an engine, ``said_s`` seconds after it began: what finished (``data.columns``; None: nothing), when it
    computed, which requests have their first token."""

    completions: Columns | None
    spans: Sequence[Span]
    first: Sequence[int]
    said_s: float


@dataclass(slots=True)
class Staged:
    """Of the learner, after ``StageStep``."""

    staging: Staging


FromWorker = Phase | Answer | Refused | Dying | EngineReport | Staged
