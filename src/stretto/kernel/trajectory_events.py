"""Events of a trajectory's life, typed: from its submission to its end. ``stretto.kernel.event_types`` has them all."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, NotRequired, TypedDict


class Ending(StrEnum):
    """How a trajectory ends; each that was submitted ends once."""

    TRAINED = "trained"
    REJECTED = "rejected"
    """Too old, or without room in the pool."""
    FILTERED = "filtered"
    """Its group has nothing to learn from (``control.filter``)."""
    FAILED = "failed"
    CANCELLED = "cancelled"
    """Nobody needs it any more: the run ends."""


ENDINGS = tuple(ending.value for ending in Ending)


class Timed(TypedDict):
    """What every event has beside its name ``e``."""

    t: Annotated[float, "seconds on the run's clock"]


class Restarted(Timed):
    """An unfinished group goes on after Resumed, from its saved tokens (version as before) or from scratch (version =
    now)."""

    e: Literal["Restarted"]
    group: int
    traj: Annotated[list[int], "open ones"]
    engine: str
    version: int
    pin: NotRequired[Annotated[int, "as in Submitted"]]


class Submitted(Timed):
    """A group starts with these trajectories, or one of them in the place of one that failed."""

    e: Literal["Submitted"]
    group: int
    task: Annotated[int, "position in the data"]
    traj: list[int]
    engine: str
    version: Annotated[int, "dispatch version: no token of the group is older"]
    replaces: NotRequired[Annotated[int, "the trajectory that failed"]]
    pin: NotRequired[Annotated[int, "the version that alone serves these; none: what the engine holds, token by token"]]


class Placed(Timed):
    """The requests of a trajectory go to this engine from now on, as control.router decided, or because its engine has
    died; or it stays there, as it has seen newer weights meanwhile than where control.preemption wanted it."""

    e: Literal["Placed"]
    traj: int
    engine: str


class Preempted(Timed):
    """control.preemption interrupts a running trajectory, or lets it go on."""

    e: Literal["Preempted"]
    traj: int
    verb: Annotated[
        str,
        "pause: it rests, its KV cache stays; evict: it rests, its cache is dropped; resume: it goes on; migrate: it "
        "goes on elsewhere, with its cache",
    ]
    engine: Annotated[str, "where it is, or goes on"]


class FirstToken(Timed):
    """The loop learnt that these requests have a token."""

    e: Literal["FirstToken"]
    engine: str
    traj: list[int]
    request: Annotated[list[int], "of each, its number in its trajectory"]


class TurnDone(Timed):
    """A turn that another one follows."""

    e: Literal["TurnDone"]
    traj: int
    start: float
    tokens: int
    versions: Annotated[list[list[int]], "runs of (version, tokens)"]


class EnvStarted(Timed):
    """A trajectory leaves the engine for a tool or for scoring; an open one of a stuck run names who hangs."""

    e: Literal["EnvStarted"]
    traj: int
    what: str


class EnvDone(Timed):
    """It is back."""

    e: Literal["EnvDone"]
    traj: int
    start: Annotated[float, "t of its EnvStarted"]
    what: str


class TrajDone(Timed):
    """A trajectory's rollout is over."""

    e: Literal["TrajDone"]
    traj: int
    group: int
    start: float
    tokens: Annotated[int, "of the policy"]
    length: Annotated[int, "all tokens"]
    versions: Annotated[list[list[int]], "runs of (version, tokens)"]
    turns: int
    reward: Annotated[float | None, "null: absent"]
    finish: Annotated[str, "of its last turn: stop, length, aborted; none without a turn"]
    terminated: bool
    truncated: bool
    rewards: NotRequired[Annotated[dict[str, float | None], "of each reward function"]]


class TrajEnd(Timed):
    """These end without training."""

    e: Literal["TrajEnd"]
    traj: list[int]
    ending: Annotated[Ending, "rejected, filtered, failed or cancelled"]
    reason: str
    tokens: Annotated[int, "of the policy, lost"]
    group: NotRequired[int]
    group_over: NotRequired[Annotated[bool, "the whole group ends with this"]]


class GroupReady(Timed):
    """A group waits to be trained."""

    e: Literal["GroupReady"]
    group: int
    version: Annotated[int, "published now"]
    traj: Annotated[list[int], "valid ones"]
    tokens: int


class PrefixScored(Timed):
    """How far the current policy has moved away from what older ones had sampled first of waiting trajectories."""

    e: Literal["PrefixScored"]
    version: Annotated[int, "of the current policy"]
    traj: list[int]
    forgetting: Annotated[list[float], "of each: mean over its prefix of what `control.pool` takes for drift"]
    tokens: Annotated[int, "that went through the policy"]
    start: float


class LatePending(Timed):
    """A trajectory is done, but for a reward that comes later."""

    e: Literal["LatePending"]
    traj: int


class LateMatured(Timed):
    """The late reward is there."""

    e: Literal["LateMatured"]
    traj: int
    since: Annotated[float, "t of its LatePending"]
    reward: float


class LateDropped(Timed):
    """They wait no longer."""

    e: Literal["LateDropped"]
    traj: list[int]
    reason: str
