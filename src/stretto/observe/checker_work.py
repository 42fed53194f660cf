"""Invariants of trajectories and groups: who exists, what may sample it, who is whole, who has ended."""

from __future__ import annotations

from collections.abc import Iterable

from stretto.control.guarantees import Guarantee
from stretto.data.identity import Role
from stretto.kernel.logfile import Event
from stretto.kernel.trajectory_events import ENDINGS
from stretto.observe.checker_state import SLACK_S, Engine, Group, Open, Rules, some


class WorkRules(Rules):
    """Handlers ``_on_<event>`` of Submitted, Restarted, FirstToken, TurnDone, EnvStarted, EnvDone, TrajDone, TrajEnd,
    GroupReady."""

    def _on_Submitted(self, event: Event) -> None:
        s, id, version, ids = self.state, event["group"], event["version"], event["traj"]
        if version > s.published:
            self.bad(f"dispatched at version {version}; published is {s.published}")
        group = s.groups.get(id)
        fresh = group is None
        if group is None:
            if id in s.over:
                return self.bad(f"group {id} was submitted before")
            group = s.groups[id] = self._new_group(event)
        elif "replaces" in event:
            self._replaces(event, group)
        for traj in ids:
            if traj <= s.newest:
                self.bad(f"trajectory {traj} was submitted before")
                continue
            if traj > s.newest + 1:
                self.bad(f"trajectory {traj} follows {s.newest}: those between were never submitted")
            s.enter(traj, group, event["t"])
        if not fresh and "replaces" not in event:
            self.bad(f"group {id} was submitted before")
        if s.cap is not None and fresh and s.outstanding > s.cap:
            self.bad(f"{s.outstanding} groups are outstanding; admission allows {s.cap}")

    def _new_group(self, event: Event) -> Group:
        s, version = self.state, event["version"]
        engine = s.engine(event["engine"])
        if s.group_size is not None and len(event["traj"]) != s.group_size:
            self.bad(f"group {event['group']} of {len(event['traj'])}; group_size is {s.group_size}")
        if engine.held is None or engine.role != Role.ENGINE:
            self.bad(f"{engine.name} serves no version now")
        elif version != engine.held and Guarantee.LOADED_VERSION in s.guarantees:
            if version < engine.held or version > s.published:
                self.bad(f"dispatched at version {version}; {engine.name} holds {engine.held}")
            else:
                engine.announced = version  # it has loaded this and its Loaded comes next
        return Group(event["group"], version, engine, pin=self._pin(event, version, engine))

    def _pin(self, event: Event, version: int | None, engine: Engine) -> int | None:
        """The version to which the event pins its group. ``version``: the one that pinning rules must name."""
        s = self.state
        pin: int | None = event.get("pin", version if s.pinned else None)
        if pin is None:
            return None
        s.pins = True
        if s.pinned and pin != version:
            self.bad(f"group {event['group']} is pinned to version {pin}, not to {version}")
        if pin in s.released:
            self.bad(f"group {event['group']} is pinned to version {pin}, which was released")
        elif pin not in engine.loaded and engine.announced != pin:
            self.bad(f"group {event['group']} is pinned to version {pin}, which {engine.name} has not loaded")
        return pin

    def _replaces(self, event: Event, group: Group) -> None:
        lost = event["replaces"]
        if self.state.ending_of(lost) != "failed":
            self.bad(f"trajectory {lost} has not failed; nothing replaces it")
        if event["version"] != group.version:
            self.bad(f"dispatched at version {event['version']}; group {group.id} was at {group.version}")
        if event["engine"] != group.engine.name:
            self.bad(f"on {event['engine']}; group {group.id} runs on {group.engine.name}")
        if self._pin(event, group.pin, group.engine) != group.pin:
            self.bad(f"pinned to version {event['pin']}; group {group.id} is to {group.pin}")
        if group.over or group.id in self.state.ready:
            self.bad(f"group {group.id} runs no longer")

    def _on_Restarted(self, event: Event) -> None:
        s, id, version = self.state, event["group"], event["version"]
        engine, members = s.engine(event["engine"]), event["traj"]
        if id in s.ready:
            self.bad(f"group {id} is ready; it can't start again")
        if version > s.published:
            self.bad(f"dispatched at version {version}; published is {s.published}")
        if engine.held is None:
            self.bad(f"{engine.name} serves no version now")
        group = s.groups.get(id)
        if group is None:
            return self.bad(f"group {id} was never submitted")
        if version not in (group.version, engine.held):
            self.bad(f"group {id} was dispatched at version {group.version}; {engine.name} holds {engine.held}")
        left = {i for i in group.open.difference(members) if not s.open[i].done}
        if left:
            self.bad(f"group {id} goes on without {some(left)}")
        # at its old version it goes on from its saved tokens; at a new one it starts from scratch
        goes_on = version == group.version
        group.engine, group.version, group.resting = engine, version, False
        group.pin = self._pin(event, engine.held, engine)
        for traj in members:
            known = self.find(traj)
            if known is None:
                continue
            if known.group is not group:
                self.bad(f"trajectory {traj} belongs to group {known.group.id}, not {id}")
            if known.done:
                self.bad(f"trajectory {traj} is done; it can't start again")
            s.open[traj] = Open(known.group, event["t"], known if goes_on else None)

    def _versions(self, id: int, known: Open, event: Event) -> None:
        """Per-token versions: run lengths add up, never decrease, were published, loaded, not released before."""
        s, last, count = self.state, known.version, 0
        # what a restarted trajectory had sampled before is as old as its first submission
        begin = known.submitted if known.restarted else max(event["start"], known.submitted)
        released, pin = s.released, known.pin
        if known.group.resting:
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
            elif not known.loaded(version):
                who = known.engine.name if version in s.loaded else "no engine"
                self.bad(f"trajectory {id}: sampled by version {version}, which {who} has {_not(who)}loaded")
            elif version in released and released[version] < begin - SLACK_S:
                self.bad(f"trajectory {id}: sampled by version {version}, released before it started")
            if pin is not None and version != pin:
                self.bad(f"trajectory {id}: sampled by version {version}, but pinned to {pin}")
        if count != event["tokens"]:
            self.bad(f"trajectory {id}: {event['tokens']} tokens, but versions of {count}")

    def _first_token(self, id: int, known: Open, tokens: int) -> None:
        """A turn that has ``tokens`` ended: one of its requests got a first one (what was saved has none anew)."""
        if tokens > 0 and known.request <= known.counted and not known.restarted:
            self.bad(f"trajectory {id}: {tokens} tokens, but no first one")
        known.counted = known.request

    def _on_TurnDone(self, event: Event) -> None:
        id = event["traj"]
        known = self.find(id)
        if known is None:
            return
        if known.done:
            self.bad(f"trajectory {id}: a turn after its end")
        self._versions(id, known, event)
        if event["start"] < known.turn - SLACK_S:
            self.bad(f"trajectory {id}: a turn starts at {event['start']}, before {known.turn}")
        known.turn = event["t"]
        known.tokens += event["tokens"]
        self._first_token(id, known, event["tokens"])

    def _on_FirstToken(self, event: Event) -> None:
        engine = event["engine"]
        for id, request in zip(event["traj"], event["request"], strict=True):
            known = self.find(id)
            if known is None:
                continue
            if known.done:
                self.bad(f"trajectory {id}: a first token after its end")
            if engine != known.engine.name and engine not in {left.name for left in known.left}:
                self.bad(f"trajectory {id} runs on {known.engine.name}, not on {engine}")
            if request <= known.request:
                self.bad(f"trajectory {id}: the first token of request {request} after that of request {known.request}")
            known.request = request

    def _on_EnvStarted(self, event: Event) -> None:
        id, what = event["traj"], event["what"]
        if self.find(id) is not None:
            self.state.env.setdefault((id, what), []).append(event["t"])
            self.state.env_of.setdefault(id, set()).add((id, what))

    def _on_EnvDone(self, event: Event) -> None:
        """May come after the trajectory was given up: what it waited for ends later."""
        id, what, start = event["traj"], event["what"], event["start"]
        if id not in self.state.open and id not in self.state.closed:
            if self.ended_long_ago(id):
                return None
            return self.bad(f"trajectory {id} was never submitted")
        starts = self.state.env.get((id, what), [])
        if start not in starts:
            return self.bad(f"trajectory {id}: {what!r} ends that did not start at {start}")
        starts.remove(start)
        if not starts:
            del self.state.env[id, what]
            keys = self.state.env_of[id]
            keys.discard((id, what))
            if not keys:
                del self.state.env_of[id]
        return None

    def _on_TrajDone(self, event: Event) -> None:
        id, tokens = event["traj"], event["tokens"]
        known = self.find(id)
        if known is None:
            return
        if known.done:
            self.bad(f"trajectory {id} is done twice")
        if known.group.id != event["group"]:
            self.bad(f"trajectory {id} belongs to group {known.group.id}, not {event['group']}")
        self._versions(id, known, event)
        if event["start"] < known.since - SLACK_S:
            self.bad(f"trajectory {id}: starts at {event['start']}, before it was submitted at {known.since}")
        # fewer than its turns had if some left training
        self._first_token(id, known, tokens - known.tokens)
        if not known.restarted and not known.left:  # else it is open which engine has sampled how many
            known.engine.sampled += tokens
        if event["length"] < tokens:
            self.bad(f"trajectory {id}: length {event['length']} < {tokens} policy tokens")
        reward = event["reward"]
        if reward is not None and reward != reward:
            self.bad(f"trajectory {id}: reward is NaN")
        known.finish(event["versions"], reward is not None)

    def _on_TrajEnd(self, event: Event) -> None:
        s, ending = self.state, event["ending"]
        if ending not in ENDINGS or ending == "trained":
            return self.bad(f"unknown ending {ending!r}")
        tokens, exact = 0, True
        broken: set[Group] = set()
        for id in event["traj"]:
            known = self.find(id)
            if known is None:
                continue
            if known.done:
                tokens += known.tokens
            else:
                exact = False
                known.engine.gave_up = True
            if known.valid:
                broken.add(known.group)
            s.close(id, ending)
        for group in broken:
            group.over = True
            # one that is late may end just after
            if left := {i for i in group.open if s.open[i].done}:
                self.bad(f"group {group.id} loses a trajectory that has a reward, but not {some(left)}")
        if event["tokens"] != tokens and (exact or event["tokens"] < tokens):
            self.bad(f"{event['tokens']} tokens lost; its trajectories had {tokens}")

    def _on_GroupReady(self, event: Event) -> None:
        s, id, ids = self.state, event["group"], event["traj"]
        if id in s.ready:
            self.bad(f"group {id} is ready twice")
        if not ids or len(set(ids)) != len(ids):
            self.bad(f"group {id}: members {ids}")
        if event["version"] != s.published:
            self.bad(f"group {id}: ready at version {event['version']}; published is {s.published}")
        tokens = self._claimed(id, ids)
        if event["tokens"] != tokens:
            self.bad(f"group {id}: {event['tokens']} tokens; its members have {tokens}")
        group = s.groups.get(id)
        if group is not None:
            if group.over:
                self.bad(f"group {id} has lost a trajectory that had a reward")
            # one that is late may end just after: StepStart sees whether it did
            if left := {i for i in group.open.difference(ids) if s.open[i].done}:
                self.bad(f"group {id} is ready without {some(left)}")
        s.ready[id] = (event["version"], tuple(ids))

    def _on_PrefixScored(self, event: Event) -> None:
        s = self.state
        if event["version"] != s.version:
            self.bad(f"prefixes are scored at version {event['version']}; the learner is at {s.version}")
        if s.step is not None:
            self.bad(f"prefixes are scored while step {s.step['step']} runs")
        for id, forgetting in zip(event["traj"], event["forgetting"], strict=True):
            known = self.find(id)
            if known is not None and known.group.id not in s.ready:
                self.bad(f"trajectory {id}: its prefix is scored, but group {known.group.id} doesn't wait")
            if not 0 <= forgetting < float("inf"):
                self.bad(f"trajectory {id}: forgetting {forgetting}")

    def _claimed(self, group: int, ids: Iterable[int]) -> int:
        """Tokens of the members that a ready group claims."""
        tokens = 0
        for id in ids:
            known = self.find(id)
            if known is None:
                continue
            if known.group.id != group:
                self.bad(f"group {group} claims trajectory {id} of group {known.group.id}")
            if not known.done:
                self.bad(f"group {group} is ready but trajectory {id} is not done")
            elif not known.valid:
                self.bad(f"group {group} claims trajectory {id}, which has no {'reward' if known.tokens else 'token'}")
            tokens += known.tokens
        return tokens


def _not(who: str) -> str:
    return "" if who == "no engine" else "not "
