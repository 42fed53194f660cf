"""The invariants of a run, recomputed from its event log alone.

The checker shares no code with the loop: it re-derives ledger, staleness and versions from the event log in one
pass, so a defect in the loop's own bookkeeping can't hide itself. What it holds:

* conservation: submitted = open + trained + rejected + filtered + failed + cancelled, each trajectory ends once;
* groups train whole, in one step, with a reward each; a rewarded member leaves only with its whole group;
* versions: published ones consecutive, non-decreasing inside a trajectory and on a worker, nothing sampled from a
  version that wasn't published, loaded by its own engine and not yet released; a pinned trajectory has one, which is
  there from its submission to its end;
* a group starts at the version that its engine holds, and no more are outstanding than admission allows;
* staleness: total = generation + waiting, in integers, equal to the recount; no token over the lag bound;
* each turn gets its first token, each request at most one; what an environment ends it has started; nothing starts
  before it was submitted; a worker that sampled was busy, and never twice at once;
* late rewards: promised = in time + returned + dropped + pending; a trajectory comes back once, only after it trained,
  as soon as its reward is there, and within its lifetime;
* steps: numbered without gap, each ends, a skipped one changes no version, each trains a whole batch (but for
  what is left at the end of the data), and a run is done after the last one; times never run backwards.

What it remembers doesn't grow with the log: a trajectory that ended long ago is known by its group alone, a version
that nothing open can have any more is forgotten.

What rules may do otherwise is checked only where they promise it (``RunStart.guarantees``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from stretto.control.guarantees import Guarantee
from stretto.kernel.logfile import MALFORMED, Event, stream_events
from stretto.kernel.trajectory_events import ENDINGS
from stretto.observe.checker_moves import MoveRules
from stretto.observe.checker_state import SLACK_S, CheckResult, Violation, some
from stretto.observe.checker_steps import StepRules
from stretto.observe.checker_work import WorkRules
from stretto.observe.checker_workers import WorkerRules

ABNORMAL = ("error", "interrupt", "signal", "kill", "fail", "crash", "stop", "deadline", "deadlock")
"""``RunEnd.reason`` of a run that did not get to its end starts with one of these; it may leave work open."""


def check_events(events: Iterable[Event]) -> list[Violation]:
    """Every violation in these events, in order; at most ``MAX_VIOLATIONS`` and a last one that counts the rest."""
    return _check(events).violations


def check_run(run_dir: Path | str) -> CheckResult:
    """Check the event log of a run directory. A torn last line is dropped; a run without RunEnd isn't complete.

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


class Checker(WorkRules, MoveRules, StepRules, WorkerRules):
    """One pass over the events; call it with each in order. Findings land in ``result``."""

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result)
        self._time = float("-inf")
        self._handlers: dict[str, Callable[[Event], None]] = {
            name[4:]: getattr(self, name) for name in dir(self) if name.startswith("_on_")
        }

    def __call__(self, event: Event) -> None:
        """Check one event against everything before it."""
        s = self.state
        self.result.events += 1
        try:
            name = self.name = event["e"]
            if name == MALFORMED:
                return self.bad(f"not a JSON object: {event['malformed']!r}")
            if self.result.complete and name != "Resumed":
                self.bad("after RunEnd")
            t = event["t"]
            if t < self._time:
                self.bad(f"time runs backwards: {t} after {self._time}")
            self._time = t
            if "start" in event and event["start"] > t + SLACK_S:
                self.bad(f"starts at {event['start']}, after its end at {t}")
            handler = self._handlers.get(name)
            if handler is None:
                return self.bad("unknown event")
            if not s.started and name != "RunStart":
                self.bad("before RunStart")
                s.started = True
            handler(event)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            self.bad(f"malformed: {type(error).__name__} {error}")
        if s.submitted != len(s.open) + s.ended:
            self.bad(f"conservation: {s.submitted} submitted, {len(s.open)} open, {s.ended} ended")

    # --- the run -----------------------------------------------------------------------------------------------

    def _on_RunStart(self, event: Event) -> None:
        s = self.state
        if s.started:
            self.bad("a second RunStart")
        s.started = True
        s.lag_bound, s.max_num_seqs = event["lag_bound"], event.get("max_num_seqs")
        s.batch, s.group_size = event.get("prompts_per_step"), event.get("group_size")
        s.max_steps, s.tasks = event.get("max_steps"), event.get("tasks")
        s.drop_last = event.get("drop_last", True)
        s.guarantees = frozenset(event["guarantees"])
        s.pinned = event.get("in_flight") == "pin" or Guarantee.ONE_VERSION in s.guarantees
        if Guarantee.DEPTH in s.guarantees:
            s.cap = int((event["depth"] + 1) * event["prompts_per_step"])
        s.version = s.published = event["version"]
        s.steps = event["step"]
        self.late_lifetime = event.get("late_lifetime")

    def _on_Resumed(self, event: Event) -> None:
        s = self.state
        self.result.complete = False
        s.republish = True
        s.env.clear()
        s.env_of.clear()
        s.to_release.clear()
        s.engines_changed = False
        for worker in s.engines.values():
            worker.held, worker.announced, worker.came_up, worker.gave_up = None, None, False, False
            worker.sampled = worker.busy = 0
        if s.step is not None:
            self.bad(f"step {s.step['step']} is still open")
            s.step = None
        if event["version"] != s.version:
            self.bad(f"continues at version {event['version']}; the log is at {s.version}")
        if event["step"] != s.steps:
            self.bad(f"continues at step {event['step']}; the log has {s.steps} steps")
        s.version = s.published = event["version"]
        s.steps, s.max_steps, s.tasks = event["step"], event["max_steps"], event.get("tasks")
        for known in s.open.values():
            known.group.resting = known.group.id not in s.ready

    def _on_RunEnd(self, event: Event) -> None:
        s, reason = self.state, str(event["reason"]).lower()
        self.result.complete = True
        counted = {"submitted": s.submitted, **{name: s.endings[name] for name in ENDINGS}, "open": len(s.open)}
        for name, count in counted.items():
            if event["ledger"][name] != count:
                self.bad(f"ledger says {event['ledger'][name]} {name}; the log has {count}")
        self.late_run_ends(event, not reason.startswith(ABNORMAL))
        if reason.startswith(ABNORMAL):
            return
        if s.open:
            self.bad(f"{len(s.open)} trajectories are still open at a normal end: {some(s.open)}")
        if s.step is not None:
            self.bad(f"step {s.step['step']} never ended")
        if reason == "done" and s.max_steps is not None and s.steps < s.max_steps:
            self.bad(f"done after {s.steps} of {s.max_steps} steps")
        if reason == "data exhausted" and s.tasks is not None and len(s.groups) + len(s.over) < s.tasks:
            self.bad(f"the data is exhausted after {len(s.groups) + len(s.over)} of {s.tasks} tasks")
        self._last_versions()

    def _last_versions(self) -> None:
        """What the engines have given up is released, and what they announced is loaded."""
        s = self.state
        if s.engines_changed:  # one that was on its way up may have kept both
            return
        if s.to_release and not s.pins and Guarantee.LOADED_VERSION in s.guarantees:
            self.bad(f"version {some(s.to_release)} was never released")
        for worker in s.engines.values():
            if worker.announced is not None:
                self.bad(f"{worker.name} was given work at version {worker.announced} and never loaded it")

    def _on_Waiting(self, event: Event) -> None:
        if event["since"] > event["t"] + SLACK_S:
            self.bad(f"waits since {event['since']}, after now")

    def _on_Fault(self, event: Event) -> None:
        event["where"], event["what"]
