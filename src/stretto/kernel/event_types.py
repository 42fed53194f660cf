"""The events of a run's log, typed: names, fields, what each field is. ``stretto.kernel.events`` writes them.

They are plain dicts as the log has them, one a line, so that reading one costs nothing;
``stretto.kernel.event_shapes`` says where one isn't what its type says. ``docs/events.md`` is written from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, NotRequired, TypedDict, get_args

from stretto.kernel.trajectory_events import (
    EnvDone,
    EnvStarted,
    FirstToken,
    GroupReady,
    LateDropped,
    LateMatured,
    LatePending,
    Placed,
    Preempted,
    PrefixScored,
    Restarted,
    Submitted,
    Timed,
    TrajDone,
    TrajEnd,
    TurnDone,
)  # fmt: skip


class RunStart(Timed):
    """The first event of a log: what is run."""

    e: Literal["RunStart"]
    format: Annotated[int, "of the log"]
    mode: Annotated[str, "train, rehearse or simulate"]
    policy: Annotated[str, "whose versions these are"]
    seed: int
    lag_bound: int
    depth: float
    prompts_per_step: int
    group_size: int
    max_steps: int
    tasks: Annotated[int | None, "of the data in all; null: no end"]
    drop_last: Annotated[bool, "only whole batches train"]
    engines: Annotated[int, "how many"]
    max_num_seqs: Annotated[int, "slots of each engine"]
    in_flight: Annotated[str, "what happens to running requests when weights change"]
    rules: Annotated[dict[str, str], "of control: hook, name"]
    guarantees: Annotated[list[str], "what these rules promise (`control.guarantees`)"]
    version: int
    step: int
    late_lifetime: NotRequired[Annotated[int, "steps; the objective takes late rewards"]]


class Resumed(Timed):
    """The log goes on from a checkpoint; all workers are new."""

    e: Literal["Resumed"]
    version: int
    step: int
    max_steps: int
    tasks: Annotated[int | None, "as in RunStart"]
    lr: NotRequired[Annotated[list[float], "of the last step and of the next: the schedule isn't what it was"]]


class WorkerUp(Timed):
    """A worker is there."""

    e: Literal["WorkerUp"]
    worker: str
    role: Annotated[str, "engine, standby (an engine that gets no new work), learner, scoring"]


class WorkerDown(Timed):
    """A worker is gone."""

    e: Literal["WorkerDown"]
    worker: str
    role: str
    reason: str


class Staleness(TypedDict):
    """Of a step's fresh tokens."""

    total: int
    generation: int
    waiting: int
    max: int


class LateRows(TypedDict):
    """Late rewards in a step."""

    in_time: Annotated[list[int], "fresh rows whose late reward is there"]
    traj: Annotated[list[int], "those that come back as rows of their own"]
    delay: Annotated[list[int], "steps since each trained"]
    tokens: Annotated[int, "of these"]


class StepStart(Timed):
    """A step trains these groups."""

    e: Literal["StepStart"]
    step: int
    version: int
    groups: list[int]
    traj: list[int]
    tokens: int
    staleness: Annotated[Staleness, "of fresh tokens, summed, and the largest"]
    late: NotRequired[LateRows]


class StepEnd(Timed):
    """A step is over; its trajectories are trained unless it was skipped."""

    e: Literal["StepEnd"]
    step: int
    version: Annotated[int, "after it"]
    skipped: bool
    metrics: Annotated[dict[str, float | None], "of the learner"]


class RoleChanged(Timed):
    """A worker has another role; whether it lives is another matter."""

    e: Literal["RoleChanged"]
    worker: str
    role: Annotated[str, "engine or standby"]


class Published(Timed):
    """A version can be loaded."""

    e: Literal["Published"]
    version: int
    checksum: str
    bytes: int
    start: Annotated[float, "of its staging"]


class Loaded(Timed):
    """An engine holds a version."""

    e: Literal["Loaded"]
    worker: str
    version: int
    mode: Annotated[str, "in-flight mode"]
    start: Annotated[float, "of the pause"]


class Released(Timed):
    """No engine holds it any more."""

    e: Literal["Released"]
    version: int


class Busy(Timed):
    """A worker computed from start to end."""

    e: Literal["Busy"]
    worker: str
    start: float
    end: float
    tokens: int
    prefill: Annotated[int, "tokens"]
    rows: Annotated[float, "sequences a step, mean"]
    waiting: NotRequired[Annotated[int, "requests without a slot at its end"]]
    kv_tokens: NotRequired[Annotated[int, "that its cache held"]]
    preempted: NotRequired[Annotated[int, "requests so far"]]


class Waiting(Timed):
    """A wait passed `deadlines.warn_s`."""

    e: Literal["Waiting"]
    owner: str
    what: str
    since: float


class Fault(Timed):
    """Something failed and was dealt with."""

    e: Literal["Fault"]
    where: str
    what: str


class Eval(Timed):
    """An evaluation."""

    e: Literal["Eval"]
    version: int
    accuracy: float
    reward: float
    n: int
    start: float
    absent: NotRequired[Annotated[int, "of the n, those that have no reward and count as 0"]]
    distance: NotRequired[Annotated[dict[str, float], "engine: of its weights to its first ones"]]


class Checkpoint(Timed):
    """A checkpoint is being written."""

    e: Literal["Checkpoint"]
    step: int
    version: int


class RunEnd(Timed):
    """The last event of a log."""

    e: Literal["RunEnd"]
    reason: str
    ledger: Annotated[dict[str, int], "submitted, each ending, open"]
    late: NotRequired[Annotated[dict[str, int], "promised, in_time, returned, dropped, pending"]]


Typed = (
    RunStart | Resumed | Restarted | WorkerUp | WorkerDown | Submitted | Placed | Preempted | FirstToken | TurnDone
    | EnvStarted | EnvDone | TrajDone | TrajEnd | GroupReady | PrefixScored | StepStart | LatePending | LateMatured
    | LateDropped | StepEnd | RoleChanged | Published | Loaded | Released | Busy | Waiting | Fault | Eval
    | Checkpoint | RunEnd
)  # fmt: skip
TYPES: Mapping[str, type] = {kind.__name__: kind for kind in get_args(Typed)}
"""By the name that ``e`` says."""
