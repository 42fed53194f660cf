"""Cumulative counts of a run: the ledger in trajectories and tokens, who is where, staleness of each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from stretto.data.identity import ENGINES
from stretto.data.variance import all_equal
from stretto.kernel.logfile import Event
from stretto.kernel.metrics import Metric, Section, declare
from stretto.kernel.trajectory_events import ENDINGS

Row = dict[str, Any]
N = TypeVar("N", int, float)
OWN = declare(
    __name__,
    Metric(Section.REWARD, "reward/trained/{mean,count}", "reward, trajectories",
           "valid rewards of the batch that trained; what comes back for a late reward was counted before",
           "near `reward/all/mean`", "a growing gap: filters or rejection select"),
    Metric(Section.REWARD, "group/zero_variance_fraction", "share",
           "groups whose valid rewards are all equal, of those with two or more", "0.1 to 0.6",
           "near 1: tasks too easy or too hard, nothing is learned"),
    Metric(Section.REWARD, "group/valid_size", "trajectories", "valid members of a group",
           "`group_size`; at least 2 with a group baseline", "failures eat the groups"),
    Metric(Section.STALENESS, "staleness/{mean,p95,max}", "versions",
           "of the batch's tokens: the version that trains minus the one that sampled", "**exact**: max at most L",
           "mean at L: `control.depth` is high"),
    Metric(Section.STALENESS, "staleness/{generation,waiting}", "versions",
           "parts of the mean before and after completion", "**exact**: their sum is the mean",
           "a large waiting part: the learner is the bottleneck"),
    Metric(Section.STALENESS, "staleness/span", "versions", "newest minus oldest version inside one trajectory",
           "at most L; 0 with `pin`"),
    Metric(Section.STALENESS, "pool/age_p95", "s", "how long the batch's groups had waited", "no trend"),
    Metric(Section.STALENESS, "batch/{groups,tokens}", "groups, policy tokens", "the batch's size",
           "`prompts_per_step` groups"),
)  # fmt: skip


class Done:
    """What is remembered of a completed trajectory until it ends."""

    __slots__ = ("group", "reward", "rewards", "tokens", "truncated", "turns", "versions")

    def __init__(self, event: Event) -> None:
        self.group: int = event["group"]
        self.reward: float | None = event["reward"]
        self.rewards: dict[str, float | None] | None = event.get("rewards")
        self.tokens: int = event["tokens"]
        self.versions: list[list[int]] = event["versions"]
        self.turns: int = event["turns"]
        self.truncated: bool = event["truncated"]


@dataclass(slots=True)
class Tally:
    """Call it with each event, in order."""

    submitted: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(ENDINGS, 0))
    done: dict[int, Done] = field(default_factory=dict)
    """completed, not ended"""
    done_tokens: int = 0
    ready: dict[int, tuple[float, int, list[int]]] = field(default_factory=dict)
    """group: (time, version, trajectories) since it waits ready; in training included until its step starts"""
    training: list[int] = field(default_factory=list)
    steps: int = 0
    """that trained; skipped ones are counted apart"""
    skipped: int = 0
    version: int = 0
    published: int = 0
    worker_version: dict[str, int] = field(default_factory=dict)
    restarts: int = 0
    group_of: dict[int, int] = field(default_factory=dict)
    """trajectory, until it ends: its group"""
    batch: Row = field(default_factory=dict)
    """metrics of the batch that was shipped last"""
    stale_tokens: dict[int, int] = field(default_factory=dict)
    """staleness in versions: trained tokens"""
    _waiting: dict[int, tuple[float, int, list[int]]] = field(default_factory=dict)
    _ages: dict[int, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """Submitted trajectories that have not ended."""
        return self.submitted - sum(self.counts.values())

    @property
    def in_flight(self) -> int:
        """Open trajectories that have not completed."""
        return self.open - len(self.done)

    def ledger(self) -> dict[str, tuple[int, int]]:
        """(trajectories, policy tokens) of each ending, of what is open (completed, not ended) and of all."""
        parts = {name: (self.counts[name], self.tokens[name]) for name in ENDINGS}
        parts["open"] = (self.open, self.done_tokens)
        return {"submitted": (self.submitted, sum(tokens for _, tokens in parts.values())), **parts}

    @property
    def handlers(self) -> dict[str, Callable[[Event], object]]:
        """What takes in the events of each name that is counted."""
        return {name: getattr(self, method) for name, method in _HANDLERS.items()}

    def __call__(self, event: Event) -> None:
        method = _HANDLERS.get(event["e"])
        if method is not None:
            getattr(self, method)(event)

    def trajectory_done(self, event: Event) -> Done:
        """A trajectory completed; returns what is remembered of it."""
        done = self.done[event["traj"]] = Done(event)
        self.done_tokens += done.tokens
        return done

    def _submitted(self, event: Event) -> None:
        group, group_of = event["group"], self.group_of
        for id in event["traj"]:
            if id not in group_of:
                self.submitted += 1
                group_of[id] = group

    def _ended(self, event: Event) -> None:
        self.counts[event["ending"]] += len(event["traj"])
        self.tokens[event["ending"]] += event["tokens"]
        for id in event["traj"]:
            self._forget(id)

    def _group_ready(self, event: Event) -> None:
        self.ready[event["group"]] = (event["t"], event["version"], event["traj"])

    def _step_start(self, event: Event) -> None:
        self.training = event["traj"]
        self.batch = self._batch(event)
        self._waiting = {g: self.ready.pop(g) for g in event["groups"] if g in self.ready}

    def _published(self, event: Event) -> None:
        self.published = event["version"]

    def _loaded(self, event: Event) -> None:
        self.worker_version[event["worker"]] = event["version"]

    def _worker_down(self, event: Event) -> None:
        self.restarts += event["role"] in ENGINES
        self.worker_version.pop(event["worker"], None)

    def _resumed(self, event: Event) -> None:
        self.training = []
        self.worker_version.clear()

    def _run_start(self, event: Event) -> None:
        self.version = self.published = event["version"]
        self.steps = event["step"]

    def _forget(self, id: int) -> Done | None:
        """The trajectory ended: drop what is known of it."""
        group = self.group_of.pop(id, None)
        done = self.done.pop(id, None)
        if done is not None:
            self.done_tokens -= done.tokens
        ready = self.ready.get(group) if group is not None else None
        if group is not None and ready and not any(member in self.group_of for member in ready[2]):
            del self.ready[group]
        return done

    def _step_end(self, event: Event) -> None:
        if event["skipped"]:
            self.skipped += 1
            self.ready.update(self._waiting)
        else:
            self.steps += 1
            for id in self.training:
                done = self._forget(id)
                self.counts["trained"] += 1
                self.tokens["trained"] += done.tokens if done is not None else 0
            for age, tokens in self._ages.items():
                self.stale_tokens[age] = self.stale_tokens.get(age, 0) + tokens
        self.training = []
        self.version = event["version"]

    def _batch(self, event: Event) -> Row:
        """Metrics of the batch that this StepStart ships."""
        version, span = event["version"], 0
        ages: dict[int, int] = {}
        self._ages = ages
        rewards: list[float] = []
        for id in event["traj"]:
            done = self.done.get(id)
            if done is None:
                continue
            for v, n in done.versions:
                ages[version - v] = ages.get(version - v, 0) + n
            if done.versions:
                span = max(span, done.versions[-1][0] - done.versions[0][0])
            if done.reward is not None:
                rewards.append(done.reward)
        stale, tokens = event["staleness"], max(1, event["tokens"])
        waits = [event["t"] - self.ready[g][0] for g in event["groups"] if g in self.ready]
        row: Row = {
            "staleness/mean": stale["total"] / tokens,
            "staleness/p95": percentile(ages, 0.95),
            "staleness/max": stale["max"],
            "staleness/generation": stale["generation"] / tokens,
            "staleness/waiting": stale["waiting"] / tokens,
            "staleness/span": span,
            "reward/trained/count": len(rewards),
            "batch/groups": len(event["groups"]),
            "batch/tokens": event["tokens"],
            "pool/age_p95": percentile(Counter(waits), 0.95),
        }
        if rewards:
            row["reward/trained/mean"] = sum(rewards) / len(rewards)
        return OWN.checked(row | self._groups(event))

    def _groups(self, event: Event) -> Row:
        """Zero variance is judged on raw valid rewards, as filter and learner do; a group of fewer than two is a case
        of its own."""
        flat = judged = valid = 0
        for group in event["groups"]:
            ids = self.ready[group][2] if group in self.ready else []
            rewards = [r for id in ids if id in self.done and (r := self.done[id].reward) is not None]
            valid += len(rewards)
            if len(rewards) >= 2:
                judged += 1
                flat += int(all_equal(min(rewards), max(rewards)))
        row: Row = {"group/valid_size": valid / max(1, len(event["groups"]))}
        if judged:
            row["group/zero_variance_fraction"] = flat / judged
        return row


_HANDLERS = {
    "TrajDone": "trajectory_done",
    "Submitted": "_submitted",
    "TrajEnd": "_ended",
    "GroupReady": "_group_ready",
    "StepStart": "_step_start",
    "StepEnd": "_step_end",
    "Published": "_published",
    "Loaded": "_loaded",
    "WorkerDown": "_worker_down",
    "Resumed": "_resumed",
    "RunStart": "_run_start",
}


def percentile(counts: Mapping[N, int], q: float) -> N:
    """The least value that at least the share ``q`` of the counted ones does not exceed; 0 of nothing."""
    need = q * sum(counts.values())
    seen = 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= need:
            return value
    return 0
