"""The state that decisions see, built from the event log alone.

``View`` is a listener of the event log. Rules read it and never change it. Because it is a function of the log, a
decision can be replayed from the log, in any mode.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass(slots=True)
class GroupView:
    """A group that has been submitted and not yet trained or ended."""

    id: int
    version: int
    """Dispatch version: no token of the group is older."""
    engine: str
    open: set[int] = field(default_factory=set)
    """Trajectories that are still running."""
    tokens: int = 0
    version_complete: int | None = None
    """Published version when the group became ready; None while it runs."""


@dataclass(slots=True)
class EngineView:
    """An engine as the loop knows it: the version that it acknowledged and the trajectories that it serves."""

    name: str
    version: int | None = None
    trajectories: int = 0
    up: bool = True


class View:
    """What rules may know.

    ``version``: completed learner steps; a step that starts now starts at it. ``running``, ``ready``: groups by id.
    ``training``: ids of the groups in the step that runs now. ``outstanding``: dispatch version -> number of groups
    running or ready.
    """

    def __init__(self) -> None:
        self.mode = ""
        self.lag_bound = 0
        self.depth = 0.0
        self.batch = 1
        self.group_size = 1
        self.max_steps = 0
        self.version = 0
        self.steps_tried = 0
        self.running: dict[int, GroupView] = {}
        self.ready: dict[int, GroupView] = {}
        self.training: dict[int, GroupView] = {}
        self.outstanding: Counter[int] = Counter()
        self.engines: dict[str, EngineView] = {}
        self.ledger: Counter[str] = Counter()
        self._group_of: dict[int, int] = {}
        self._training_ids: list[int] = []
        self._handlers = {
            "RunStart": self._run_start,
            "Resumed": self._resumed,
            "Restarted": self._restarted,
            "WorkerUp": self._worker_up,
            "WorkerDown": self._worker_down,
            "Submitted": self._submitted,
            "TrajDone": self._done,
            "TrajEnd": self._ended,
            "GroupReady": self._group_ready,
            "StepStart": self._step_start,
            "StepEnd": self._step_end,
            "Loaded": self._loaded,
            "RoleChanged": self._role_changed,
        }

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        handler = self._handlers.get(event["e"])
        if handler is not None:
            handler(event)

    @property
    def open(self) -> int:
        """Trajectories submitted and not ended."""
        endings = ("trained", "rejected", "filtered", "failed", "cancelled")
        return self.ledger["submitted"] - sum(self.ledger[e] for e in endings)

    @property
    def open_ids(self) -> list[int]:
        """Their ids."""
        return list(self._group_of)

    def _run_start(self, event: Event) -> None:
        self.mode = event["mode"]
        self.lag_bound = event["lag_bound"]
        self.depth = event["depth"]
        self.batch = event["prompts_per_step"]
        self.group_size = event["group_size"]
        self.max_steps = event["max_steps"]
        self.version = event["version"]

    def _resumed(self, event: Event) -> None:
        self.max_steps = event["max_steps"]
        self.engines = {}
        for group in self.running.values():
            group.engine = ""

    def _restarted(self, event: Event) -> None:
        group = self.running[event["group"]]
        self._release(group)
        group.version, group.engine = event["version"], event["engine"]
        self.outstanding[group.version] += 1
        self.engines[group.engine].trajectories += len(group.open)

    def _worker_up(self, event: Event) -> None:
        if event["worker"].startswith("engine"):
            self.engines[event["worker"]] = EngineView(event["worker"])

    def _worker_down(self, event: Event) -> None:
        if event["worker"] in self.engines:
            self.engines[event["worker"]].up = False

    def _role_changed(self, event: Event) -> None:
        self.engines[event["worker"]].up = event["active"]

    def _loaded(self, event: Event) -> None:
        self.engines[event["worker"]].version = event["version"]

    def _submitted(self, event: Event) -> None:
        group_id, ids = event["group"], event["traj"]
        group = self.running.get(group_id)
        if group is None:
            group = self.running[group_id] = GroupView(group_id, event["version"], event["engine"])
            self.outstanding[group.version] += 1
        group.open.update(ids)
        for trajectory in ids:
            self._group_of[trajectory] = group_id
        self.ledger["submitted"] += len(ids)
        if event["engine"] in self.engines:
            self.engines[event["engine"]].trajectories += len(ids)

    def _close(self, trajectory: int) -> GroupView | None:
        group = self.running.get(self._group_of[trajectory])
        if group is not None and trajectory in group.open:
            group.open.discard(trajectory)
            if group.engine in self.engines:
                self.engines[group.engine].trajectories -= 1
        return group

    def _done(self, event: Event) -> None:
        group = self._close(event["traj"])
        if group is not None:
            group.tokens += event["tokens"]

    def _ended(self, event: Event) -> None:
        for trajectory in event["traj"]:
            self._close(trajectory)
            del self._group_of[trajectory]
        self.ledger[event["ending"]] += len(event["traj"])
        if event.get("group_over"):
            group = self.running.pop(event["group"], None) or self.ready.pop(event["group"], None)
            if group is not None:
                self._release(group)

    def _group_ready(self, event: Event) -> None:
        group = self.running.pop(event["group"])
        group.version_complete = event["version"]
        self.ready[group.id] = group

    def _step_start(self, event: Event) -> None:
        self.training = {g: self.ready.pop(g) for g in event["groups"]}
        for group in self.training.values():
            self._release(group)
        self._training_ids = event["traj"]
        self.steps_tried += 1

    def _step_end(self, event: Event) -> None:
        if not event["skipped"]:
            self.ledger["trained"] += len(self._training_ids)
            self.version = event["version"]
            for trajectory in self._training_ids:
                self._group_of.pop(trajectory, None)
        self.training = {}

    def _release(self, group: GroupView) -> None:
        self.outstanding[group.version] -= 1
        if not self.outstanding[group.version]:
            del self.outstanding[group.version]
