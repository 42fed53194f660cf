"""Invariants of trajectories, groups and steps: who exists, who is whole, who trains, how stale."""

from __future__ import annotations

from stretto.observe.checker_state import ENDINGS, SLACK_S, Event, Open, Rules, some


class WorkRules(Rules):
    """Handlers ``_on_<event>`` of Submitted, FirstToken, TurnDone, EnvStarted, EnvDone, TrajDone, TrajEnd, GroupReady,
    StepStart, StepEnd."""

    # --- trajectories and groups -------------------------------------------------------------------------------

    def _on_Submitted(self, event: Event) -> None:
        s, group, version = self.state, event["group"], event["version"]
        if version > s.published:
            self.bad(f"dispatched at version {version}; published is {s.published}")
        for id in event["traj"]:
            if id in s.open or id in s.closed:
                self.bad(f"trajectory {id} was submitted before")
            else:
                s.submitted += 1
                s.open[id] = Open(group, version, event["t"])

    def _find(self, id: int) -> Open | None:
        """The open trajectory; complains about unknown and ended ones."""
        found = self.state.open.get(id)
        if found is None:
            ending = self.state.closed.get(id)
            self.bad(f"trajectory {id} {'was never submitted' if ending is None else f'has ended as {ending}'}")
        return found

    def _versions(self, id: int, known: Open, event: Event) -> None:
        """Per-token versions: run lengths add up, never decrease, were published, loaded, not released before."""
        s, last, count = self.state, known.version, 0
        # what a restarted trajectory had sampled before is as old as its first submission
        begin = known.submitted if known.restarted else max(event["start"], known.submitted)
        if known.group in s.to_restart:
            self.bad(f"trajectory {id} goes on, but its group was not restarted")
        for version, n in event["versions"]:
            count += n
            if n <= 0:
                self.bad(f"trajectory {id}: a run of {n} tokens")
            if version < last:
                self.bad(
                    f"trajectory {id}: version {version} after {last}"
                    if count > n
                    else f"trajectory {id}: sampled by version {version}, dispatched at {last}"
                )
            last = version
            if version > s.published:
                self.bad(f"trajectory {id}: sampled by version {version}; published is {s.published}")
            elif version not in s.loaded:
                self.bad(f"trajectory {id}: sampled by version {version}, which no engine has loaded")
            elif s.released.get(version, float("inf")) < begin - SLACK_S:
                self.bad(f"trajectory {id}: sampled by version {version}, released before it started")
        if count != event["tokens"]:
            self.bad(f"trajectory {id}: {event['tokens']} tokens, but versions of {count}")

    def _on_TurnDone(self, event: Event) -> None:
        id = event["traj"]
        known = self._find(id)
        if known is None:
            return
        if known.done:
            self.bad(f"trajectory {id}: a turn after its end")
        self._versions(id, known, event)

    def _on_FirstToken(self, event: Event) -> None:
        id, request = event["traj"], event["request"]
        event["engine"]
        known = self._find(id)
        if known is None:
            return
        if known.done:
            self.bad(f"trajectory {id}: a first token after its end")
        if request <= known.request:
            self.bad(f"trajectory {id}: the first token of request {request} after that of request {known.request}")
        known.request = request

    def _on_EnvStarted(self, event: Event) -> None:
        id, what = event["traj"], event["what"]
        if self._find(id) is not None:
            self.state.env.setdefault((id, what), []).append(event["t"])

    def _on_EnvDone(self, event: Event) -> None:
        """May come after the trajectory was given up: what it waited for ends later."""
        id, what, start = event["traj"], event["what"], event["start"]
        if id not in self.state.open and id not in self.state.closed:
            return self.bad(f"trajectory {id} was never submitted")
        starts = self.state.env.get((id, what), [])
        if start not in starts:
            return self.bad(f"trajectory {id}: {what!r} ends that did not start at {start}")
        starts.remove(start)
        if not starts:
            del self.state.env[id, what]

    def _on_TrajDone(self, event: Event) -> None:
        id = event["traj"]
        known = self._find(id)
        if known is None:
            return
        if known.done:
            self.bad(f"trajectory {id} is done twice")
        if known.group != event["group"]:
            self.bad(f"trajectory {id} belongs to group {known.group}, not {event['group']}")
        self._versions(id, known, event)
        if event["length"] < event["tokens"]:
            self.bad(f"trajectory {id}: length {event['length']} < {event['tokens']} policy tokens")
        reward = event["reward"]
        if reward is not None and reward != reward:
            self.bad(f"trajectory {id}: reward is NaN")
        known.finish(event["versions"], reward is not None)

    def _on_TrajEnd(self, event: Event) -> None:
        s, ending = self.state, event["ending"]
        if ending not in ENDINGS or ending == "trained":
            return self.bad(f"unknown ending {ending!r}")
        tokens, exact = 0, True
        for id in event["traj"]:
            known = self._find(id)
            if known is None:
                continue
            tokens += known.tokens
            exact &= known.done
            s.close(id, ending)
        if event["tokens"] != tokens and (exact or event["tokens"] < tokens):
            self.bad(f"{event['tokens']} tokens lost; its trajectories had {tokens}")

    def _on_GroupReady(self, event: Event) -> None:
        s, group, ids = self.state, event["group"], event["traj"]
        if group in s.ready:
            self.bad(f"group {group} is ready twice")
        if not ids or len(set(ids)) != len(ids):
            self.bad(f"group {group}: members {ids}")
        if event["version"] != s.published:
            self.bad(f"group {group}: ready at version {event['version']}; published is {s.published}")
        tokens = 0
        for id in ids:
            known = self._find(id)
            if known is None:
                continue
            if known.group != group:
                self.bad(f"group {group} claims trajectory {id} of group {known.group}")
            if not known.done:
                self.bad(f"group {group} is ready but trajectory {id} is not done")
            elif not known.valid:
                self.bad(f"group {group} claims trajectory {id}, which has no reward")
            tokens += known.tokens
        if event["tokens"] != tokens:
            self.bad(f"group {group}: {event['tokens']} tokens; its members have {tokens}")
        s.ready[group] = (event["version"], tuple(ids))

    # --- steps -------------------------------------------------------------------------------------------------

    def _on_StepStart(self, event: Event) -> None:
        s, version, ids = self.state, event["version"], event["traj"]
        if s.step is not None:
            self.bad(f"step {s.step['step']} has not ended")
        if event["step"] != s.steps:
            self.bad(f"is labelled step {event['step']}; {s.steps} steps have trained")
        if version != s.version:
            self.bad(f"starts at version {version}; the learner is at {s.version}")
        members = set(ids)
        s.step = {"step": event["step"], "groups": event["groups"], "members": members}
        if len(members) != len(ids):
            self.bad("a trajectory appears twice in the batch")
        total = generation = tokens = worst = 0
        rest = set(ids)
        for group in event["groups"]:
            ready = s.ready.get(group)
            if ready is None:
                self.bad(f"group {group} is not ready")
                continue
            complete, valid = ready
            if not members.issuperset(valid):
                self.bad(f"group {group} trains without {some(set(valid) - members)}")
            rest.difference_update(valid)
            for id in valid:
                if id in members and (known := self._find(id)) is not None:
                    n, sampled = known.tokens, known.sampled
                    tokens += n
                    total += n * version - sampled
                    generation += n * complete - sampled
                    if n:
                        worst = max(worst, version - known.oldest)
        if rest:
            self.bad(f"trajectories {some(rest)} belong to none of its groups")
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
        if event["step"] != step["step"]:
            self.bad(f"step {event['step']} ends; step {step['step']} was running")
        if not event["skipped"]:
            s.version += 1
            s.steps += 1
            for group in step["groups"]:
                s.ready.pop(group, None)
            for id in step["members"]:
                if self._find(id) is not None:
                    s.close(id, "trained")
        if event["version"] != s.version:
            self.bad(f"ends at version {event['version']}; the learner is at {s.version}")
            s.version = event["version"]
