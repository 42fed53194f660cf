"""What the checker remembers between two events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]
SLACK_S = 2e-6
"""Times are rounded to microseconds, each on its own."""
MAX_VIOLATIONS = 1000
"""A broken log breaks everywhere; the rest is only counted."""
ENDINGS = ("trained", "rejected", "filtered", "failed", "cancelled")


class Open:
    """A trajectory that has not ended. ``sampled``: token-weighted sum of its versions; ``oldest``: least of them."""

    __slots__ = (
        "done", "group", "oldest", "request", "restarted", "sampled", "submitted", "tokens", "valid", "version",
    )  # fmt: skip

    def __init__(self, group: int, version: int, submitted: float, restarted: bool = False) -> None:
        self.group = group
        self.version = version
        self.submitted = submitted
        self.restarted = restarted
        self.done = self.valid = False
        self.tokens = self.sampled = self.oldest = 0
        self.request = -1  # the last one that got its first token

    def finish(self, versions: list[list[int]], valid: bool) -> None:
        """It is done: sum up its tokens."""
        self.done, self.valid = True, valid
        self.tokens = sum(n for _, n in versions)
        self.sampled = sum(v * n for v, n in versions)
        self.oldest = min((v for v, _ in versions), default=0)


@dataclass(slots=True)
class State:
    """The run as the log tells it so far."""

    started: bool = False
    lag_bound: int | None = None
    slots: int | None = None
    version: int = 0
    """of the learner: steps that were not skipped"""
    published: int = 0
    republish: bool = True
    """the version loaded at start or resume may be published once more"""
    steps: int = 0
    """that were not skipped"""
    to_restart: set[int] = field(default_factory=set)
    """groups that were unfinished at Resumed and have not been restarted"""
    step: dict[str, Any] | None = None
    submitted: int = 0
    ended: int = 0
    open: dict[int, Open] = field(default_factory=dict)
    closed: dict[int, str] = field(default_factory=dict)
    endings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    ready: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """group: (version when it became ready, its valid trajectories)"""
    env: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """(trajectory, what): when the environment waits that have not ended began"""
    loaded: set[int] = field(default_factory=set)
    released: dict[int, float] = field(default_factory=dict)
    worker_version: dict[str, int] = field(default_factory=dict)
    workers_restarted: bool = False

    def close(self, id: int, ending: str) -> None:
        """The trajectory ends; a ready group that has lost all its members is gone."""
        group = self.open.pop(id).group
        self.closed[id] = ending
        self.ended += 1
        self.endings[ending] += 1
        ready = self.ready.get(group)
        if ready is not None and ending != "trained" and not any(m in self.open for m in ready[1]):
            del self.ready[group]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant: line of the log (1-based), name of its event, what is wrong."""

    line: int
    event: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}, {self.event}: {self.message}"


@dataclass(slots=True)
class CheckResult:
    """``events`` checked; ``complete``: the log ends with RunEnd (a crashed run's doesn't: no violation)."""

    events: int = 0
    violations: list[Violation] = field(default_factory=list)
    complete: bool = False


class Rules:
    """Base of the checker: state, findings, and where in the log it is."""

    def __init__(self, result: CheckResult) -> None:
        self.result = result
        self.suppressed = 0
        self.state = State()
        self.name = ""

    def bad(self, message: str) -> None:
        """Record a violation at the current event."""
        if len(self.result.violations) >= MAX_VIOLATIONS:
            self.suppressed += 1
            return
        self.result.violations.append(Violation(self.result.events, self.name, message))


def some(ids: Iterable[int]) -> str:
    """The first few ids, for a message."""
    listed = sorted(ids)
    return ", ".join(map(str, listed[:5])) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
