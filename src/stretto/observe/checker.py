"""The invariants of a run, recomputed from its event log alone.

The checker shares no code with the loop: it re-derives ledger, staleness and versions from ``events.jsonl`` in one
pass, so a defect in the loop's own bookkeeping can't hide itself. What it holds (DESIGN.md 5, spec/systems.md 13):

* conservation: submitted = open + trained + rejected + filtered + failed + cancelled, each trajectory ends once;
* groups train whole, in one step, and only with a reward each;
* versions: published ones consecutive, non-decreasing inside a trajectory and on a worker, nothing sampled from a
  version that wasn't published, loaded and not yet released;
* staleness: total = generation + waiting, in integers, equal to the recount; no token over the lag bound;
* each request gets its first token at most once; what an environment ends it has started;
* steps: numbered without gap, each ends, a skipped one changes no version; times never run backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from stretto.observe.checker_state import ENDINGS, SLACK_S, CheckResult, Event, Open, Violation, some
from stretto.observe.checker_work import WorkRules
from stretto.observe.stream import MALFORMED, stream_events

ABNORMAL = ("error", "interrupt", "signal", "kill", "fail", "crash", "stop", "deadline", "deadlock")
"""``RunEnd.reason`` of a run that did not get to its end starts with one of these; it may leave work open."""


def check_events(events: Iterable[Event]) -> list[Violation]:
    """Every violation in these events, in order; at most ``MAX_VIOLATIONS`` and a last one that counts the rest."""
    return _check(events).violations


def check_run(run_dir: Path | str) -> CheckResult:
    """Check ``events.jsonl`` of a run directory. A torn last line is dropped; a run without RunEnd isn't complete.

    Raises:
        DataError: there is no event log.
    """
    return _check(stream_events(run_dir))


def _check(events: Iterable[Event]) -> CheckResult:
    result = CheckResult()
    checker = Checker(result)
    for event in events:
        checker(event)
    if checker.suppressed:
        result.violations.append(
            Violation(result.events, "log", f"{checker.suppressed} more violations are not listed")
        )
    return result


class Checker(WorkRules):
    """One pass over the events; call it with each in order. Findings land in ``result``."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result)
        self._time = float("-inf")
        self._handlers: dict[str, Callable[[Event], None]] = {
            name[4:]: getattr(self, name) for name in dir(self) if name.startswith("_on_")
        }

    def __call__(self, event: Event) -> None:
        """Check one event against everything before it."""
        self.result.events += 1
        try:
            name = self.name = event["e"]
            if name == MALFORMED:
                return self.bad(f"not a JSON object: {event['malformed']!r}")
            if self.result.complete and name != "Resumed":
                self.bad("after RunEnd")
            self._times(event)
            handler = self._handlers.get(name)
            if handler is None:
                return self.bad("unknown event")
            if not self.state.started and name != "RunStart":
                self.bad("before RunStart")
                self.state.started = True
            handler(event)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self.bad(f"malformed: {type(error).__name__} {error}")
        s = self.state
        if s.submitted != len(s.open) + s.ended:
            self.bad(f"conservation: {s.submitted} submitted, {len(s.open)} open, {s.ended} ended")

    def _times(self, event: Event) -> None:
        t = event["t"]
        if t < self._time:
            self.bad(f"time runs backwards: {t} after {self._time}")
        self._time = t
        start = event.get("start")
        if start is not None and start > t + SLACK_S:
            self.bad(f"starts at {start}, after its end at {t}")

    # --- the run -----------------------------------------------------------------------------------------------

    def _on_RunStart(self, event: Event) -> None:
        s = self.state
        if s.started:
            self.bad("a second RunStart")
        s.started = True
        s.lag_bound, s.slots = event["lag_bound"], event.get("slots")
        s.version = s.published = event["version"]
        s.steps = event["step"]

    def _on_Resumed(self, event: Event) -> None:
        s = self.state
        self.result.complete = False
        s.republish = True
        s.worker_version.clear()
        s.env.clear()
        if s.step is not None:
            self.bad(f"step {s.step['step']} is still open")
            s.step = None
        if event["version"] != s.version:
            self.bad(f"continues at version {event['version']}; the log is at {s.version}")
        if event["step"] != s.steps:
            self.bad(f"continues at step {event['step']}; the log has {s.steps} steps")
        s.version = s.published = event["version"]
        s.steps = event["step"]
        s.to_restart = {known.group for known in s.open.values()} - s.ready.keys()

    def _on_Restarted(self, event: Event) -> None:
        s, group, version = self.state, event["group"], event["version"]
        s.to_restart.discard(group)
        if group in s.ready:
            self.bad(f"group {group} is ready; it can't start again")
        if version > s.published:
            self.bad(f"dispatched at version {version}; published is {s.published}")
        for id in event["traj"]:
            known = self._find(id)
            if known is None:
                continue
            if known.group != group:
                self.bad(f"trajectory {id} belongs to group {known.group}, not {group}")
            if known.done:
                self.bad(f"trajectory {id} is done; it can't start again")
            # at its old version it goes on from its saved tokens; at a new one it starts from scratch
            submitted = known.submitted if version == known.version else event["t"]
            s.open[id] = Open(group, version, submitted, restarted=version == known.version)

    def _on_RunEnd(self, event: Event) -> None:
        s = self.state
        self.result.complete = True
        counted = {"submitted": s.submitted, **{name: s.endings[name] for name in ENDINGS}, "open": len(s.open)}
        for name, count in counted.items():
            if event["ledger"][name] != count:
                self.bad(f"ledger says {event['ledger'][name]} {name}; the log has {count}")
        if not str(event["reason"]).lower().startswith(ABNORMAL):
            if s.open:
                self.bad(f"{len(s.open)} trajectories are still open at a normal end: {some(s.open)}")
            if s.step is not None:
                self.bad(f"step {s.step['step']} never ended")

    # --- weights and workers -----------------------------------------------------------------------------------

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
        s, version, worker = self.state, event["version"], event["worker"]
        if version > s.published:
            self.bad(f"{worker} loads version {version}; published is {s.published}")
        before = s.worker_version.get(worker)
        if before is not None and version < before:
            self.bad(f"{worker} loads version {version} after {before}")
        if version in s.released:
            if before is not None or not s.workers_restarted:
                self.bad(f"{worker} loads version {version}, which was released")
            s.released.pop(version)
        s.worker_version[worker] = version
        s.loaded.add(version)

    def _on_Released(self, event: Event) -> None:
        s, version = self.state, event["version"]
        if version not in s.loaded:
            self.bad(f"version {version} was never loaded")
        for worker, held in s.worker_version.items():
            if held == version:
                self.bad(f"version {version} is released while {worker} serves it")
        s.released.setdefault(version, event["t"])

    def _on_WorkerUp(self, event: Event) -> None:
        self.state.worker_version.pop(event["worker"], None)

    def _on_WorkerDown(self, event: Event) -> None:
        event["reason"]
        self.state.worker_version.pop(event["worker"], None)
        self.state.workers_restarted = True

    def _on_Busy(self, event: Event) -> None:
        rows, slots = event["rows"], self.state.slots
        if not event["start"] - SLACK_S <= event["end"] <= event["t"] + SLACK_S:
            self.bad(f"from {event['start']} to {event['end']}, logged at {event['t']}")
        if slots and rows > slots + 1e-6:
            self.bad(f"{event['worker']} decodes {rows} rows in {slots} slots")
        if event["tokens"] < 0 or event["prefill"] < 0:
            self.bad("negative tokens")

    def _on_RoleChanged(self, event: Event) -> None:
        if not event["active"]:
            self.state.worker_version.pop(event["worker"], None)

    def _on_Eval(self, event: Event) -> None:
        if event["version"] not in self.state.loaded:
            self.bad(f"evaluates version {event['version']}, which no engine has loaded")

    def _on_Checkpoint(self, event: Event) -> None:
        s = self.state
        if event["version"] != s.version or event["step"] != s.steps:
            self.bad(f"holds version {event['version']} of step {event['step']}; the log is at {s.version}, {s.steps}")

    def _on_Waiting(self, event: Event) -> None:
        if event["since"] > event["t"] + SLACK_S:
            self.bad(f"waits since {event['since']}, after now")

    def _on_Fault(self, event: Event) -> None:
        event["where"], event["what"]
