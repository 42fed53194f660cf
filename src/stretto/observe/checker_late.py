"""Invariants of late rewards: who waits, who comes back, once, not before it trained and not too late."""

from __future__ import annotations

from dataclasses import dataclass

from stretto.kernel.logfile import Event
from stretto.observe.checker_state import CheckResult, Rules, some

ENDS = ("in_time", "returned", "dropped")


@dataclass(slots=True)
class Late:
    """A trajectory that waits for its late reward. ``trained_at``: version of the step that trained it (None: not yet);
    ``taken``: the step that runs now uses it."""

    tokens: int
    trained_at: int | None = None
    matured: bool = False
    taken: str | None = None


class LateRules(Rules):
    """Handlers ``_on_<event>`` of LatePending, LateMatured, LateDropped, and what steps and the end must keep.

    promised = in_time + returned + dropped + pending at each event, as every promise leaves ``waiting`` for exactly one
    of the three. The lag bound is for fresh rows: a row that comes back may be older by its delay, which is recounted
    here and at most ``late_lifetime`` steps.
    """

    def __init__(self, result: CheckResult) -> None:
        super().__init__(result)
        self.waiting: dict[int, Late] = {}
        self.promised = 0
        self.late_ends = dict.fromkeys(ENDS, 0)
        self.late_lifetime: int | None = None

    def _on_LatePending(self, event: Event) -> None:
        id = event["traj"]
        known = self.find(id)
        if self.late_lifetime is None:
            self.bad("nobody takes late rewards in this run")
        if known is None:
            return
        if not known.valid:
            self.bad(f"trajectory {id} waits for a late reward, but is not done with a first one")
        if id in self.waiting:
            self.bad(f"trajectory {id} promises a second late reward")
        self.waiting[id] = Late(known.tokens)
        self.promised += 1

    def _on_LateMatured(self, event: Event) -> None:
        late = self._late(event["traj"])
        if late is None:
            return
        if late.matured:
            self.bad(f"trajectory {event['traj']} gets its late reward twice")
        if event["reward"] is None or event["reward"] != event["reward"]:
            self.bad(f"trajectory {event['traj']}: the late reward is absent")
        late.matured = True

    def _on_LateDropped(self, event: Event) -> None:
        event["reason"]
        for id in event["traj"]:
            if self._late(id) is not None:
                self._leave(id, "dropped")

    def _late(self, id: int) -> Late | None:
        found = self.waiting.get(id)
        if found is None:
            self.bad(f"trajectory {id} waits for no late reward")
        return found

    def _leave(self, id: int, end: str) -> None:
        del self.waiting[id]
        self.late_ends[end] += 1

    def late_step_starts(self, event: Event, members: set[int]) -> None:
        """What has matured goes into this step, and nothing else."""
        told = event.get("late") or {"in_time": [], "traj": [], "delay": [], "tokens": 0}
        version, back = event["version"], told["traj"]
        claimed = {"in_time": set(told["in_time"]), "returned": set(back)}
        if len(claimed["in_time"]) + len(claimed["returned"]) != len(told["in_time"]) + len(back):
            self.bad("a late reward is used twice in the step")
        due: dict[str, set[int]] = {"in_time": set(), "returned": set()}
        for id, late in self.waiting.items():
            late.taken = None
            gone = self.state.ending_of(id)
            if gone is not None and gone != "trained":
                self.bad(f"trajectory {id} still waits for a late reward, but has ended as {gone}")
            if late.trained_at is not None and version - late.trained_at > (self.late_lifetime or 0):
                self.bad(f"trajectory {id} waits for a late reward for {version - late.trained_at} steps")
            if late.matured and (id in members or late.trained_at is not None):
                late.taken = "in_time" if id in members else "returned"
                due[late.taken].add(id)
        for end, ids in claimed.items():
            if extra := ids - due[end]:
                self.bad(f"late rewards of trajectories {some(extra)} can't be used ({end})")
            if missing := due[end] - ids:
                self.bad(f"the late rewards of trajectories {some(missing)} are there and not used ({end})")
        tokens = 0
        for id, delay in zip(back, told["delay"], strict=True):
            known = self.waiting.get(id)
            if known is None or known.trained_at is None:
                continue
            tokens += known.tokens
            if delay != version - known.trained_at:
                self.bad(f"trajectory {id} comes back after {delay} steps; recomputed {version - known.trained_at}")
        if told["tokens"] != tokens:
            self.bad(f"{told['tokens']} tokens come back; these trajectories have {tokens}")

    def late_step_ends(self, skipped: bool, version: int, members: set[int]) -> None:
        """``version``: at which the step started."""
        for id, late in list(self.waiting.items()):
            if not skipped and late.taken is not None:
                self._leave(id, late.taken)
            elif not skipped and id in members:
                late.trained_at = version
            late.taken = None

    def late_run_ends(self, event: Event, normal: bool) -> None:
        """The log's count against ours."""
        if self.late_lifetime is None:
            return
        counted = {"promised": self.promised, **self.late_ends, "pending": len(self.waiting)}
        for name, count in counted.items():
            if event["late"][name] != count:
                self.bad(f"late rewards: {event['late'][name]} {name}; the log has {count}")
        if normal and self.waiting:
            self.bad(f"trajectories {some(self.waiting)} wait for a late reward at the end")
