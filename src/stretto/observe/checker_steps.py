"""Invariants of steps: their order, what a batch may hold, how stale it is."""

from __future__ import annotations

from stretto.control.guarantees import Guarantee
from stretto.kernel.logfile import Event
from stretto.observe.checker_late import LateRules
from stretto.observe.checker_state import some


class StepRules(LateRules):
    """Handlers ``_on_<event>`` of StepStart, StepEnd, Checkpoint."""

    def _on_StepStart(self, event: Event) -> None:
        s, version, ids = self.state, event["version"], event["traj"]
        if s.step is not None:
            self.bad(f"step {s.step['step']} has not ended")
        if event["step"] != s.steps:
            self.bad(f"is labelled step {event['step']}; {s.steps} steps have trained")
        if version != s.version:
            self.bad(f"starts at version {version}; the learner is at {s.version}")
        if s.max_steps is not None and s.steps >= s.max_steps:
            self.bad(f"after all {s.max_steps} steps")
        groups = len(event["groups"])
        # all that is open at the end of the data may be less
        rest = not s.drop_last and len(s.groups) == s.tasks and 0 < groups == s.outstanding < (s.batch or 0)
        if s.batch is not None and groups != s.batch and not rest and Guarantee.WHOLE_BATCHES in s.guarantees:
            self.bad(f"trains {groups} groups; prompts_per_step is {s.batch}")
        order = [s.last_group, *event["groups"]]
        if Guarantee.SUBMISSION_ORDER in s.guarantees and order != sorted(order):
            self.bad(f"groups {some(event['groups'])} train after group {s.last_group}: not in order of submission")
        members = set(ids)
        s.step = {"step": event["step"], "groups": event["groups"], "members": members}
        self.late_step_starts(event, members)
        if len(members) != len(ids):
            self.bad("a trajectory appears twice in the batch")
        total = generation = tokens = worst = 0
        strangers = set(ids)
        for group in event["groups"]:
            ready = s.ready.get(group)
            if ready is None:
                self.bad(f"group {group} is not ready")
                continue
            complete, valid = ready
            whole = s.groups[group].open.union(valid)
            if not members.issuperset(whole):
                self.bad(f"group {group} trains without {some(whole - members)}")
            strangers.difference_update(valid)
            for id in valid:
                if id in members and (known := self.find(id)) is not None:
                    n, sampled = known.tokens, known.sampled
                    tokens += n
                    total += n * version - sampled
                    generation += n * complete - sampled
                    if n:
                        worst = max(worst, version - known.oldest)
        if strangers:
            self.bad(f"trajectories {some(strangers)} belong to none of its groups")
        claimed = event["staleness"]
        counted = {"total": total, "generation": generation, "waiting": total - generation, "max": worst}
        for name, count in counted.items():
            if claimed[name] != count:
                self.bad(f"staleness {name} {claimed[name]}; recomputed {count}")
        if claimed["total"] != claimed["generation"] + claimed["waiting"]:
            self.bad("staleness: total is not generation + waiting")
        if event["tokens"] != tokens:
            self.bad(f"{event['tokens']} tokens; its trajectories have {tokens}")
        if s.lag_bound is not None and worst > s.lag_bound:
            self.bad(f"lag bound {s.lag_bound} broken: a token trains at staleness {worst}")

    def _on_StepEnd(self, event: Event) -> None:
        s, step = self.state, self.state.step
        if step is None:
            return self.bad(f"step {event['step']} ends but has not started")
        s.step = None
        for worker in s.engines.values():  # each has logged what it did up to here
            if worker.sampled and not worker.busy and not worker.gave_up:
                self.bad(f"{worker.name} has sampled {worker.sampled} tokens and was never busy")
        if event["step"] != step["step"]:
            self.bad(f"step {event['step']} ends; step {step['step']} was running")
        self.late_step_ends(event["skipped"], s.version, step["members"])
        if not event["skipped"]:
            s.version += 1
            s.steps += 1
            for group in step["groups"]:
                s.last_group = max(s.last_group, group)
                s.ready.pop(group, None)
                if group in s.groups:
                    s.groups[group].over = True
            for id in step["members"]:
                if self.find(id) is not None:
                    s.close(id, "trained")
        if event["version"] != s.version:
            self.bad(f"ends at version {event['version']}; the learner is at {s.version}")
            s.version = event["version"]

    def _on_Checkpoint(self, event: Event) -> None:
        s = self.state
        if event["version"] != s.version or event["step"] != s.steps:
            self.bad(f"holds version {event['version']} of step {event['step']}; the log is at {s.version}, {s.steps}")
