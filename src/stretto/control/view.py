"""The state that decisions see, built from the event log alone.

``View`` is a listener of the event log. Rules read it and never change it. Because it is a function of the log, a
decision can be replayed from the log, in any mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from stretto.control.engines import EngineIndex
from stretto.control.pool_watch import PoolWatch
from stretto.control.watch import EngineLoad, TrajectoryView, Watch
from stretto.data.identity import POLICY, PolicyVersion
from stretto.kernel.errors import InvariantError
from stretto.kernel.logfile import Event
from stretto.kernel.trajectory_events import ENDINGS


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
    pin: int | None = None
    """The one version that may serve it."""


class View(EngineIndex):
    """What rules may know.

    ``t``: when the latest event came that tells something here, seconds on the run's clock. ``policy``: whose versions
    these are. ``slots`` of all engines; ``running_trajectories``: not done yet.
    ``version``: completed learner steps; a step that starts now starts at it. ``running``, ``ready``: groups by id.
    ``tasks``: of the data in all, None without end; ``started``: groups that were. ``drop_last``: batches are whole.
    ``training``: ids of the groups in the step that runs now. ``outstanding``: dispatch version -> number of groups
    running or ready. ``by_load``: (trajectories, -version, number, name) of each engine that ``serves``, in ascending
    order. ``versions``: version -> how many of these engines hold it.

    ``trajectories``, ``load``: single trajectories, and what each engine has to do; only where ``watch``, which a rule
    asks for by ``watches_trajectories = True`` in its class. ``pool``: how stale is what is ready; only where
    ``watch_pool`` (``watches_pool = True``).
    """

    def __init__(self, watch: bool = False, watch_pool: bool = False) -> None:
        super().__init__()
        self.policy = POLICY
        self.mode = ""
        self.lag_bound = 0
        self.depth = 0.0
        self.batch = 1
        self.group_size = 1
        self.slots = 0
        self.running_trajectories = 0
        self.max_steps = 0
        self.version = 0
        self.steps_tried = 0
        self.tasks: int | None = None
        self.started = 0
        self.drop_last = False
        self.running: dict[int, GroupView] = {}
        self.ready: dict[int, GroupView] = {}
        self.training: dict[int, GroupView] = {}
        self.outstanding: Counter[int] = Counter()
        self.ledger: Counter[str] = Counter()
        self._group_of: dict[int, int] = {}
        self._elsewhere: dict[int, str] = {}  # trajectories that went on elsewhere than their group began
        self._training_ids: list[int] = []
        self._handlers: dict[str, Callable[[Event], None]] = {
            "RunStart": self._run_start,
            "Resumed": self._resumed,
            "Restarted": self._restarted,
            "WorkerUp": self._worker_up,
            "WorkerDown": self._worker_down,
            "Submitted": self._submitted,
            "Placed": self._placed,
            "Preempted": self._placed,
            "TrajDone": self._done,
            "TrajEnd": self._ended,
            "GroupReady": self._group_ready,
            "StepStart": self._step_start,
            "StepEnd": self._step_end,
            "Loaded": self._loaded,
            "RoleChanged": self._role_changed,
        }
        self._watch = Watch() if watch else None
        self._pool = PoolWatch() if watch_pool else None
        for part in (self._watch, self._pool):
            for name, handler in () if part is None else part.handlers.items():
                self._handlers[name] = self._both(self._handlers.get(name), handler)

    def _both(self, own: Callable[[Event], None] | None, more: Callable[[Event], None]) -> Callable[[Event], None]:
        def handle(event: Event) -> None:
            self.t = event["t"]
            if own is not None:
                own(event)
            more(event)

        return handle

    @property
    def handlers(self) -> dict[str, Callable[[Event], None]]:
        """What takes in the events of each name that matters here."""
        return self._handlers

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        handler = self._handlers.get(event["e"])
        if handler is not None:
            handler(event)

    @property
    def trajectories(self) -> dict[int, TrajectoryView]:
        """Each trajectory that has not ended, by id."""
        return self._watched().trajectories

    @property
    def load(self) -> dict[str, EngineLoad]:
        """What each engine that has had something to do has to do, by name."""
        return self._watched().load

    @property
    def pool(self) -> PoolWatch:
        """What waits to be trained, trajectory by trajectory, and how full the pool was before each batch."""
        if self._pool is None:
            raise InvariantError(
                "a rule reads view.pool, which costs something and is kept only for rules that ask: say watches_pool = "
                "True in its class"
            )
        return self._pool

    def _watched(self) -> Watch:
        if self._watch is None:
            raise InvariantError(
                "a rule reads view.trajectories or view.load, which cost something and are kept only for rules that "
                "ask: say watches_trajectories = True in its class"
            )
        return self._watch

    def loaded(self, engine: str) -> PolicyVersion | None:
        """What this engine acknowledged last; None before its first weights."""
        version = self.engines[engine].version
        return None if version is None else PolicyVersion(self.policy, version)

    @property
    def take(self) -> int:
        """Groups that the next step takes: ``batch``; or what is left where the data ends and that may be less."""
        if self.tasks is None or self.drop_last:
            return self.batch
        return min(self.batch, self.tasks - self.started + len(self.running) + len(self.ready))

    @property
    def open(self) -> int:
        """Trajectories submitted and not ended."""
        return self.ledger["submitted"] - sum(self.ledger[e] for e in ENDINGS)

    def group_of(self, trajectory: int) -> GroupView | None:
        """The running group of a trajectory that runs; None: it doesn't (any more)."""
        group = self.running.get(self._group_of.get(trajectory, -1))
        return group if group is not None and trajectory in group.open else None

    @property
    def open_ids(self) -> list[int]:
        """Their ids."""
        return list(self._group_of)

    def _run_start(self, event: Event) -> None:
        self.t, self.policy, self.mode = event["t"], event["policy"], event["mode"]
        self.lag_bound = event["lag_bound"]
        self.depth = event["depth"]
        self.batch = event["prompts_per_step"]
        self.group_size = event["group_size"]
        self.slots = event["engines"] * event["max_num_seqs"]
        self.max_steps = event["max_steps"]
        self.version = event["version"]
        self.tasks, self.drop_last = event.get("tasks"), event.get("drop_last", False)

    def _resumed(self, event: Event) -> None:
        self.t, self.max_steps, self.tasks = event["t"], event["max_steps"], event.get("tasks")
        self._forget_engines()
        self._elsewhere.clear()
        for group in self.running.values():
            group.engine = ""

    def _restarted(self, event: Event) -> None:
        self.t = event["t"]
        group = self.running[event["group"]]
        self._release(group)
        group.version, group.engine, group.pin = event["version"], event["engine"], event.get("pin")
        self.outstanding[group.version] += 1
        self._load(group.engine, len(group.open))

    # groups

    def _submitted(self, event: Event) -> None:
        self.t = event["t"]
        group_id, ids = event["group"], event["traj"]
        group = self.running.get(group_id)
        if group is None:
            group = self.running[group_id] = GroupView(group_id, event["version"], event["engine"],
                                                       pin=event.get("pin"))  # fmt: skip
            self.started += 1
            self.outstanding[group.version] += 1
        group.open.update(ids)
        for trajectory in ids:
            self._group_of[trajectory] = group_id
        self.running_trajectories += len(ids)
        self.ledger["submitted"] += len(ids)
        self._load(event["engine"], len(ids))

    def _placed(self, event: Event) -> None:
        self.t = event["t"]
        trajectory, engine = event["traj"], event["engine"]
        group = self.running[self._group_of[trajectory]]
        here = self._elsewhere.get(trajectory, group.engine)
        if trajectory in group.open and engine != here:
            self._load(here, -1)
            self._load(engine, 1)
            self._elsewhere[trajectory] = engine

    def _close(self, trajectory: int) -> GroupView | None:
        group = self.running.get(self._group_of[trajectory])
        if group is not None and trajectory in group.open:
            group.open.discard(trajectory)
            self.running_trajectories -= 1
            self._load(self._elsewhere.pop(trajectory, group.engine), -1)
        return group

    def _done(self, event: Event) -> None:
        self.t = event["t"]
        group = self._close(event["traj"])
        if group is not None:
            group.tokens += event["tokens"]

    def _ended(self, event: Event) -> None:
        self.t = event["t"]
        for trajectory in event["traj"]:
            self._close(trajectory)
            del self._group_of[trajectory]
        self.ledger[event["ending"]] += len(event["traj"])
        if event.get("group_over"):
            group = self.running.pop(event["group"], None) or self.ready.pop(event["group"], None)
            if group is not None:
                self._release(group)

    def _group_ready(self, event: Event) -> None:
        self.t = event["t"]
        group = self.running.pop(event["group"])
        group.version_complete = event["version"]
        self.ready[group.id] = group

    def _step_start(self, event: Event) -> None:
        self.t = event["t"]
        self.training = {g: self.ready.pop(g) for g in event["groups"]}
        for group in self.training.values():
            self._release(group)
        self._training_ids = event["traj"]
        self.steps_tried += 1

    def _step_end(self, event: Event) -> None:
        self.t = event["t"]
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
