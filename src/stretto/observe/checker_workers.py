"""Invariants of workers and weights: who holds which version when, and when it computes."""

from __future__ import annotations

from stretto.data.identity import ENGINES, Role
from stretto.kernel.logfile import Event
from stretto.observe.checker_state import SLACK_S, Engine, Rules

TOLD = ("waiting", "kv_tokens", "preempted")
"""What an engine may say of how full it is."""


class WorkerRules(Rules):
    """Handlers ``_on_<event>`` of Published, Loaded, Released, WorkerUp, WorkerDown, RoleChanged, Busy, Eval."""

    def _on_Published(self, event: Event) -> None:
        s, version = self.state, event["version"]
        again = s.republish and version == s.published
        if version != s.published + 1 and not again:
            self.bad(f"version {version} is published after {s.published}")
        if version > s.version:
            self.bad(f"version {version} is published; the learner made {s.version}")
        if not again and version in s.released:
            self.bad(f"version {version} was released before")
        s.republish = False
        s.published = max(s.published, version)

    def _on_Loaded(self, event: Event) -> None:
        s, version = self.state, event["version"]
        worker = s.engine(event["worker"])
        self._is_engine(worker)
        if version > s.published:
            self.bad(f"{worker.name} loads version {version}; published is {s.published}")
        before, worker.held = worker.held, version
        if before is not None and version <= before:
            self.bad(f"{worker.name} loads version {version} after {before}")
        if worker.announced is not None and worker.announced != version:
            self.bad(f"{worker.name} loads version {version}; it was given work at {worker.announced} before")
        worker.announced = None
        if version in s.released:
            if before is not None or not s.engines_changed:
                self.bad(f"{worker.name} loads version {version}, which was released")
            s.released.pop(version)
        if before is not None and all(e.held != before for e in s.engines.values()):
            s.to_release.add(before)
        s.to_release.discard(version)
        s.loaded.add(version)
        worker.loaded.add(version)
        s.forget_versions()

    def _on_Released(self, event: Event) -> None:
        s, version = self.state, event["version"]
        if version not in s.loaded:
            self.bad(f"version {version} was never loaded")
        if version in s.released:
            self.bad(f"version {version} was released before")
        for worker in s.engines.values():
            if worker.held == version and worker.role == Role.ENGINE:
                self.bad(f"version {version} is released while {worker.name} serves it")
        if s.pins:
            for id, known in s.open.items():
                if known.pin == version and not known.done:
                    self.bad(f"version {version} is released while trajectory {id} is pinned to it")
                    break
        s.to_release.discard(version)
        s.released.setdefault(version, event["t"])

    def _on_WorkerUp(self, event: Event) -> None:
        worker = self.state.engine(event["worker"])
        worker.held, worker.announced = None, None
        worker.came_up, worker.role = True, Role(event["role"])

    def _is_engine(self, worker: Engine) -> None:
        """It does what engines do."""
        if not worker.came_up:
            self.bad(f"{worker.name} never came up")
        elif worker.role not in ENGINES:
            self.bad(f"{worker.name} is no engine: its role is {worker.role}")

    def _on_WorkerDown(self, event: Event) -> None:
        event["reason"]
        worker = self.state.engine(event["worker"])
        if worker.came_up and event["role"] != worker.role:
            self.bad(f"{worker.name} dies as {event['role']}; its role was {worker.role}")
        worker.held, worker.announced, worker.gave_up = None, None, True
        self.state.engines_changed = True

    def _on_RoleChanged(self, event: Event) -> None:
        worker = self.state.engine(event["worker"])
        self._is_engine(worker)
        worker.role = Role(event["role"])
        if worker.role not in ENGINES:
            self.bad(f"{worker.name} becomes {worker.role}, which no engine can")
        self.state.engines_changed = True

    def _on_Busy(self, event: Event) -> None:
        rows, max_num_seqs, start, end = event["rows"], self.state.max_num_seqs, event["start"], event["end"]
        worker = self.state.engine(event["worker"])
        if not worker.came_up:
            self.bad(f"{worker.name} never came up")
        if not start - SLACK_S <= end <= event["t"] + SLACK_S:
            self.bad(f"from {start} to {end}, logged at {event['t']}")
        if start < worker.busy_until - SLACK_S:
            self.bad(f"{worker.name} is busy from {start}, and until {worker.busy_until} before")
        worker.busy_until = max(worker.busy_until, end)
        worker.busy += 1
        if max_num_seqs and worker.role in ENGINES and rows > max_num_seqs + 1e-6:
            self.bad(f"{worker.name} decodes {rows} rows in {max_num_seqs} slots")
        if min(event["tokens"], event["prefill"], *(event.get(name, 0) for name in TOLD)) < 0:
            self.bad("negative tokens or requests")

    def _on_Eval(self, event: Event) -> None:
        if event["version"] not in self.state.loaded:
            self.bad(f"evaluates version {event['version']}, which no engine has loaded")
