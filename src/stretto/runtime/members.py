"""What the loop holds of a group and of its members while they run, and what a checkpoint takes of a member."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

from stretto.data.modes import Finish
from stretto.data.trajectory import Completion, Trajectory, join
from stretto.envs.base import Task
from stretto.runtime.client import RolloutClient
from stretto.runtime.pooled_engine import PooledEngine


@dataclass(slots=True, eq=False)
class Member:
    """One trajectory that runs or has ended."""

    trajectory: int
    client: RolloutClient
    task: asyncio.Task[None] | None = None
    start: float = 0.0
    result: Trajectory | None = None
    over: bool = False
    tokens: int = 0
    """Policy tokens of the result."""


@dataclass(slots=True, eq=False)
class RunningGroup:
    """A group between its submission and its end."""

    id: int
    task: Task
    version: int
    engine: PooledEngine
    pin: int | None
    members: list[Member] = field(default_factory=list)
    open: int = 0
    replaced: int = 0
    created: int = 0
    """Trajectories submitted so far; the next one's number in the group."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Why members failed."""
    deadlines: list[int] = field(default_factory=list)
    """Keys of its members' deadlines."""
    until: float = 0.0
    """When its own deadline is over (the loop's clock)."""
    deadline: int = -1
    """Key of its own."""

    @property
    def pin_field(self) -> dict[str, int]:
        """What an event says of a pinned group."""
        return {} if self.pin is None else {"pin": self.pin}


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Sizes and deadlines, from the config."""

    size: int
    rollout_s: float
    group_s: float
    replace_failed: int

    @property
    def least_valid(self) -> int:
        """Valid members without which a group has no baseline."""
        return min(2, self.size)


def snapshot_member(member: Member, partial_completions: dict[int, Completion]) -> list[Completion]:
    """What an unfinished member has sampled: finished turns, then the partial turn (finish ``aborted``)."""
    completions = [*member.client.completions, *member.client.replay]
    current = member.client.current
    if current is not None:
        request, earlier = current
        now = partial_completions.get(request)
        parts = [p for p in (earlier, now) if p is not None and len(p.tokens)]
        if parts:
            whole = parts[0] if len(parts) == 1 else join(*parts)
            completions.append(Completion(whole.tokens, whole.logprobs, whole.entropy, whole.versions, Finish.ABORTED,
                                          whole.records))  # fmt: skip
    return completions


def unfinished(member: Member, partial_completions: dict[int, Completion]) -> Trajectory | None:
    """What an unfinished member holds so far, its running turn included; None before its prompt. Its finished turns
    must have been replayed."""
    written = member.client.written
    if written is None:
        return None
    if member.client.current is None:
        return written.so_far([])
    request, earlier = member.client.current
    return written.so_far([c for c in (earlier, partial_completions.get(request)) if c is not None and len(c.tokens)])
