"""Invariants of trajectories that go on elsewhere, or rest."""

from __future__ import annotations

from stretto.kernel.logfile import Event
from stretto.observe.checker_state import Rules


class MoveRules(Rules):
    """Handlers of Placed and Preempted."""

    def _on_Placed(self, event: Event) -> None:
        id, engine = event["traj"], self.state.engine(event["engine"])
        known = self.find(id)
        if known is None:
            return
        if known.done or known.pin is not None:
            self.bad(f"trajectory {id} is placed anew " + ("after its end" if known.done else "though it is pinned"))
        if engine.held is None:
            self.bad(f"trajectory {id} is placed on {engine.name}, which serves no version now")
        known.move(engine)

    def _on_Preempted(self, event: Event) -> None:
        id, verb, engine = event["traj"], event["verb"], self.state.engine(event["engine"])
        known = self.find(id)
        if known is None:
            return
        wrong = None
        if known.done:
            wrong = "after its end"
        elif verb == "resume" and not known.rests:
            wrong = "but it runs"
        elif verb != "resume" and known.rests:
            wrong = "but it rests"
        elif verb in ("pause", "evict") and engine is not known.engine:
            wrong = f"on {engine.name}, but it is on {known.engine.name}"
        elif verb == "migrate" and engine is known.engine:
            wrong = f"to {engine.name}, where it is"
        elif engine is not known.engine and engine.held is None:
            wrong = f"to {engine.name}, which serves no version now"
        elif engine is not known.engine and known.pin is not None and known.pin not in engine.loaded:
            wrong = f"to {engine.name}, which has not loaded version {known.pin}, to which it is pinned"
        if wrong:
            self.bad(f"trajectory {id}: {verb} {wrong}")
        known.rests = verb in ("pause", "evict")
        if engine is not known.engine:
            known.move(engine)
