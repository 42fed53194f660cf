"""What the checker remembers between two events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from stretto.kernel.logfile import Event
from stretto.kernel.trajectory_events import ENDINGS

SLACK_S = 2e-6
"""Times are rounded to microseconds, each on its own."""
MAX_VIOLATIONS = 1000
"""A broken log breaks everywhere; the rest is only counted."""
REMEMBERED = 1 << 15
"""Ended trajectories that are known one by one; of older ones their groups are, so that a log may be of any length."""
VERSIONS = 256
"""Versions that no open trajectory can have any more are forgotten once there are so many of them."""


@dataclass(slots=True, eq=False)
class Engine:
    """A worker that serves versions. ``loaded``: all that it ever held; ``held``: now (None: nothing, or it is down).

    ``role``: what it said or was given last, alive or not. ``announced``: the version of a dispatch that came just
    before its Loaded. ``sampled``: tokens of trajectories done since it came up with the run; ``busy``: Busy events
    since then. ``gave_up``: it stopped a trajectory, and what it had computed for it may not be logged.
    """

    name: str
    loaded: set[int] = field(default_factory=set)
    held: int | None = None
    came_up: bool = False
    role: str = ""
    announced: int | None = None
    sampled: int = 0
    busy: int = 0
    gave_up: bool = False
    busy_until: float = float("-inf")


@dataclass(slots=True, eq=False)
class Group:
    """A group. ``version``: its dispatch; ``open``: members that have not ended; ``remembered``: how many of
    ``State.closed`` are its members; ``over``: it can't train any more.

    ``pin``: the one version that may serve it. ``resting``: unfinished at Resumed and not restarted yet.
    """

    id: int
    version: int
    engine: Engine
    pin: int | None = None
    open: set[int] = field(default_factory=set)
    remembered: int = 0
    over: bool = False
    resting: bool = False


_NONE: frozenset[int] = frozenset()
_NOBODY: frozenset[Engine] = frozenset()


class Open:
    """A trajectory that has not ended. ``sampled``: token-weighted sum of its versions; ``oldest``: least of them.

    ``submitted``: first; ``since``: last start of its rollout (submission or restart); ``turn``: end of its last turn.
    ``earlier``: versions of the engines that it ran on before a restart; ``left``: engines that it ran on since.
    ``rests``: it was paused or evicted. ``request``: the last that got its first token; ``counted``: the one that the
    last turn ended with.
    """

    __slots__ = (
        "counted", "done", "earlier", "engine", "group", "left", "oldest", "pin", "request", "restarted", "rests",
        "sampled", "since", "submitted", "tokens", "turn", "valid", "version",
    )  # fmt: skip

    def __init__(self, group: Group, t: float, before: Open | None = None) -> None:
        """``before``: it goes on from what that one had sampled."""
        self.group, self.engine, self.version, self.pin = group, group.engine, group.version, group.pin
        self.submitted = self.since = self.turn = t
        self.restarted = False
        self.earlier = _NONE
        self.done = self.valid = self.rests = False
        self.left = _NOBODY
        self.tokens = self.sampled = self.oldest = 0
        self.request = self.counted = -1
        if before is not None:
            self.restarted = True
            self.submitted = before.submitted
            self.earlier = before.earlier | before.engine.loaded

    def move(self, engine: Engine) -> None:
        """It goes on there."""
        self.left |= {self.engine}
        self.engine = engine

    def loaded(self, version: int) -> bool:
        """Has an engine that it ran on loaded this? What one serves the log says a moment later."""
        return version in self.engine.loaded or version in self.earlier or any(version in e.loaded for e in self.left)

    def finish(self, versions: list[list[int]], rewarded: bool) -> None:
        """It is done: sum up its tokens."""
        tokens = sampled = 0
        for version, n in versions:
            tokens += n
            sampled += version * n
        self.tokens, self.sampled = tokens, sampled
        self.oldest = versions[0][0] if versions else 0  # they never decrease: what does is reported
        self.done, self.valid = True, rewarded and tokens > 0


class Ranges:
    """A set of integers that come nearly in order, kept as ranges."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}
        """first of a range: one past its last"""
        self._starts: dict[int, int] = {}
        """one past the last of a range: its first"""

    def add(self, n: int) -> None:
        """One more; none that is there."""
        start = self._starts.pop(n, n)
        end = self._ends.pop(n + 1, n + 1)
        self._ends[start], self._starts[end] = end, start

    def __contains__(self, n: int) -> bool:
        return n in self._ends or any(start <= n < end for start, end in self._ends.items())

    def __len__(self) -> int:
        return sum(end - start for start, end in self._ends.items())


@dataclass(slots=True)
class State:
    """The run as the log tells it so far."""

    started: bool = False
    lag_bound: int | None = None
    max_num_seqs: int | None = None
    pinned: bool = False
    """each trajectory keeps the version that its engine held at its start"""
    pins: bool = False
    """some group was pinned to a version"""
    guarantees: frozenset[str] = frozenset()
    """what the control rules promise"""
    batch: int | None = None
    """groups of each step"""
    group_size: int | None = None
    cap: int | None = None
    """groups that may be outstanding (running, ready, training)"""
    max_steps: int | None = None
    tasks: int | None = None
    """of the data, in all epochs"""
    drop_last: bool = True
    """what is left at the end of the data doesn't train"""
    version: int = 0
    """of the learner: steps that were not skipped"""
    published: int = 0
    republish: bool = True
    """the version loaded at start or resume may be published once more"""
    steps: int = 0
    """that were not skipped"""
    last_group: int = -1
    """the highest one that has trained"""
    step: Event | None = None
    submitted: int = 0
    newest: int = -1
    """id of the trajectory that was submitted last: the next one gets the next"""
    ended: int = 0
    open: dict[int, Open] = field(default_factory=dict)
    closed: OrderedDict[int, tuple[str, Group]] = field(default_factory=OrderedDict)
    """trajectory: how it ended, its group; the latest ``REMEMBERED`` ones, in order (the first key of a plain dict
    takes the longer to find the more were deleted before it)"""
    endings: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    groups: dict[int, Group] = field(default_factory=dict)
    over: Ranges = field(default_factory=Ranges)
    """groups of which nothing is known any more but that they were"""
    outstanding: int = 0
    """groups with open members"""
    ready: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """group: (version when it became ready, its valid trajectories)"""
    env_of: dict[int, set[tuple[int, str]]] = field(default_factory=dict)
    """trajectory: its keys in ``env``"""
    env: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    """(trajectory, what): when the environment waits that have not ended began"""
    loaded: set[int] = field(default_factory=set)
    released: dict[int, float] = field(default_factory=dict)
    forget_at: int = 2 * VERSIONS
    to_release: set[int] = field(default_factory=set)
    """versions that the last engine has given up"""
    engines: dict[str, Engine] = field(default_factory=dict)
    engines_changed: bool = False
    """a worker died or changed its role"""

    def engine(self, name: str) -> Engine:
        """The worker of this name."""
        found = self.engines.get(name)
        if found is None:
            found = self.engines[name] = Engine(name)
        return found

    def enter(self, id: int, group: Group, t: float) -> None:
        """A trajectory is submitted."""
        if not group.open:
            self.outstanding += 1
        group.open.add(id)
        self.submitted += 1
        self.newest = id
        self.open[id] = Open(group, t)

    def close(self, id: int, ending: str) -> None:
        """The trajectory ends; a ready group that has lost all its members is gone."""
        group = self.open.pop(id).group
        self.closed[id] = ending, group
        group.remembered += 1
        if len(self.closed) > REMEMBERED:
            self._forget_first()
        self.ended += 1
        self.endings[ending] += 1
        group.open.discard(id)
        if not group.open:
            self.outstanding -= 1
            if ending != "trained":
                self.ready.pop(group.id, None)

    def _forget_first(self) -> None:
        """The trajectory that ended the longest ago."""
        id, (_, group) = self.closed.popitem(last=False)
        for key in [key for key in self.env_of.pop(id, ()) if key in self.env]:
            del self.env[key]
        group.remembered -= 1
        if not group.remembered and not group.open:
            del self.groups[group.id]
            self.over.add(group.id)

    def ending_of(self, id: int) -> str | None:
        """How it ended; None: it hasn't, or too long ago."""
        found = self.closed.get(id)
        return None if found is None else found[0]

    def forget_versions(self) -> None:
        """Those below what any open trajectory or engine may still have."""
        if len(self.loaded) < self.forget_at:
            return
        floor = min([self.version, self.published,
                     *(e.held for e in self.engines.values() if e.held is not None),
                     *(min(known.version, known.group.version) for known in self.open.values()),
                     *self.to_release]) - VERSIONS  # fmt: skip
        self.loaded = {v for v in self.loaded if v >= floor}
        self.released = {v: t for v, t in self.released.items() if v >= floor}
        for engine in self.engines.values():
            engine.loaded = {v for v in engine.loaded if v >= floor}
        self.forget_at = 2 * max(VERSIONS, len(self.loaded))


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

    def find(self, id: int) -> Open | None:
        """The open trajectory; complains about unknown and ended ones."""
        found = self.state.open.get(id)
        if found is None:
            ending = self.state.ending_of(id)
            known = "has ended" if self.ended_long_ago(id) else "was never submitted"
            self.bad(f"trajectory {id} {known if ending is None else f'has ended as {ending}'}")
        return found

    def ended_long_ago(self, id: int) -> bool:
        """Was it submitted, and nothing is known of it any more?"""
        s = self.state
        return 0 <= id <= s.newest and id not in s.open and id not in s.closed


def some(ids: Iterable[int]) -> str:
    """The first few ids, for a message."""
    listed = sorted(ids)
    return ", ".join(map(str, listed[:5])) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
