"""Logs of simulated runs, edited so that each stays consistent but for one rule of the loop: each edit is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stretto.config.load import apply_overrides, validate
from stretto.kernel.events import read_events
from stretto.observe.checker import check_events
from stretto.run.launch import launch

Event = dict[str, Any]
Change = Callable[[list[Event]], None]
SMALL = (
    "lag_bound=2", "prompts_per_step=4", "group_size=3", "engine.count=2", "engine.max_num_seqs=9", "max_steps=8",
    "simulation.turns=2", "logging.report=false", "logging.console=off", "eval.tasks=0",
)  # fmt: skip
LOGS: dict[str, list[Event]] = {}


@pytest.fixture(scope="module", autouse=True)
def _simulated(tmp_path_factory: pytest.TempPathFactory) -> None:
    for mode in ("keep", "pin"):
        out = tmp_path_factory.mktemp(mode) / "run"
        launch(validate(apply_overrides({}, [f"out={out}", *SMALL, f"control.in_flight={mode}"])), "simulate")
        LOGS[mode] = read_events(out)


def at(events: list[Event], name: str, k: int = 0, **match: Any) -> int:
    """Position of the k-th event of this name whose fields equal ``match``."""
    return [i for i, e in enumerate(events) if e["e"] == name and all(e.get(f) == v for f, v in match.items())][k]


def edit(name: str, k: int = 0, /, **fields: Any) -> Change:
    """Set fields of an event; a callable computes the new value from the old one."""

    def change(events: list[Event]) -> None:
        event = events[at(events, name, k)]
        event.update({f: v(event.get(f)) if callable(v) else v for f, v in fields.items()})

    return change


def without(*names: str, **match: Any) -> Change:
    def change(events: list[Event]) -> None:
        events[:] = [e for e in events if e["e"] not in names or any(e.get(f) != v for f, v in match.items())]

    return change


def twice(name: str, k: int = 0, **match: Any) -> Change:
    def change(events: list[Event]) -> None:
        i = at(events, name, k, **match)
        events.insert(i + 1, copy.deepcopy(events[i]))

    return change


def member_lost(after: bool) -> Change:
    """A rewarded member leaves its group, with all sums as they must be; it ends just after or before GroupReady."""

    def change(events: list[Event]) -> None:
        i = at(events, "GroupReady", 6)
        ready = events[i]
        lost = ready["traj"].pop()
        done = events[at(events, "TrajDone", traj=lost)]
        ready["tokens"] -= done["tokens"]
        step = next(e for e in events if e["e"] == "StepStart" and lost in e["traj"])
        step["traj"].remove(lost)
        step["tokens"] -= done["tokens"]
        total = sum((step["version"] - v) * n for v, n in done["versions"])
        generation = sum((ready["version"] - v) * n for v, n in done["versions"])
        for part, less in (("total", total), ("generation", generation), ("waiting", total - generation)):
            step["staleness"][part] -= less
        end = {"e": "TrajEnd", "t": ready["t"], "traj": [lost], "ending": "failed", "reason": "",
               "tokens": done["tokens"]}  # fmt: skip
        events.insert(i + after, end)
        events[-1]["ledger"]["trained"] -= 1
        events[-1]["ledger"]["failed"] += 1

    return change


def smaller_batch(events: list[Event]) -> None:
    """A group of a batch is rejected instead, with all sums as they must be."""
    i = at(events, "StepStart", 2)
    step = events[i]
    group = step["groups"].pop()
    ready = events[at(events, "GroupReady", group=group)]
    step["traj"] = [t for t in step["traj"] if t not in ready["traj"]]
    step["tokens"] -= ready["tokens"]
    for done in (e for e in events if e["e"] == "TrajDone" and e["traj"] in ready["traj"]):
        total = sum((step["version"] - v) * n for v, n in done["versions"])
        generation = sum((ready["version"] - v) * n for v, n in done["versions"])
        for part, less in (("total", total), ("generation", generation), ("waiting", total - generation)):
            step["staleness"][part] -= less
    events.insert(i, {"e": "TrajEnd", "t": step["t"], "traj": ready["traj"], "ending": "rejected", "reason": "",
                      "tokens": ready["tokens"], "group": group, "group_over": True})  # fmt: skip
    events[-1]["ledger"]["trained"] -= len(ready["traj"])
    events[-1]["ledger"]["rejected"] += len(ready["traj"])


def all_at_once(events: list[Event]) -> None:
    """Everything is submitted as soon as the engines have weights."""
    submitted = [e for e in events if e["e"] == "Submitted"]
    events[:] = [e for e in events if e["e"] != "Submitted"]
    first = at(events, "Loaded", 1)
    for event in submitted:
        event.update(t=events[first]["t"], version=0)
    events[first + 1 : first + 1] = submitted


def mixed_versions(events: list[Event]) -> None:
    """A pinned trajectory's last token is of the next version, which its engine has loaded by then."""
    for i, done in enumerate(events):
        if done["e"] == "TrajDone" and done["tokens"] > 2:
            engine = next(e["engine"] for e in events if e["e"] == "Submitted" and done["traj"] in e["traj"])
            version = done["versions"][0][0]
            if any(e["e"] == "Loaded" and e["worker"] == engine and e["version"] == version + 1 for e in events[:i]):
                done["versions"] = [[version, done["tokens"] - 1], [version + 1, 1]]
                return


def early_release(events: list[Event]) -> None:
    """A version goes as soon as no engine serves it, though trajectories are pinned to it."""
    i = at(events, "Released", 1)
    released = events.pop(i)
    newer = {}
    for k, e in enumerate(events):
        if e["e"] == "Loaded" and e["version"] > released["version"]:
            newer.setdefault(e["worker"], k)
    last = max(newer.values())
    assert last < i - 1
    events.insert(last + 1, {**released, "t": events[last]["t"]})


def lowered_dispatch(events: list[Event]) -> None:
    """A group says that it was dispatched at an older version than its engine held."""
    next(e for e in events if e["e"] == "Submitted" and e["version"] > 0)["version"] -= 1


def early_turn(events: list[Event]) -> None:
    """A second turn starts before the first one ended."""
    seen: set[int] = set()
    for event in events:
        if event["e"] == "TurnDone":
            event["start"] = 0.0
            seen.add(event["traj"])
    assert seen


def every_start_at_0(events: list[Event]) -> None:
    for event in events:
        if event["e"] == "TrajDone":
            event["start"] = 0.0


def no_first_token(traj: int, request: int) -> Change:
    def change(events: list[Event]) -> None:
        for event in events:
            if event["e"] == "FirstToken":
                pairs = [p for p in zip(event["traj"], event["request"], strict=True) if p != (traj, request)]
                event["traj"], event["request"] = [t for t, _ in pairs], [r for _, r in pairs]

    return change


def not_exhausted(events: list[Event]) -> None:
    """The run says that its data ended, but most of it was never handed out."""
    events[0]["tasks"] = 500
    events[-1]["reason"] = "data exhausted"


def replacement(**fields: Any) -> Change:
    """A second trajectory for one that ends as failed; ``fields`` say what is wrong with it."""

    def change(events: list[Event]) -> None:
        i = at(events, "Submitted", 3)
        first = events[i]
        lost = first["traj"][0]
        fail = {"e": "TrajEnd", "t": first["t"], "traj": [lost], "ending": "failed", "reason": "", "tokens": 0}
        again = {**first, "traj": [first["traj"][-1] + 1], "replaces": lost, **fields}
        events[i + 1 :] = [fail, again]

    return change


EDITS: dict[str, tuple[str, Change, str]] = {
    "rewarded member left out": ("keep", member_lost(after=True), "is ready without"),
    "rewarded member ended before": ("keep", member_lost(after=False), "loses a trajectory that has a reward"),
    "pinned trajectory mixes versions": ("pin", mixed_versions, "but pinned to"),
    "pinned version released": ("pin", early_release, "is pinned to it"),
    "engine never up": ("keep", without("WorkerUp", worker="engine-1"), "engine-1 never came up"),
    "engine of another role": ("keep", edit("WorkerUp", 1, role="scoring"), "engine-1 is no engine"),
    "work for one on standby": ("keep", edit("WorkerUp", 1, role="standby"), "engine-1 serves no version now"),
    "unknown role": ("keep", edit("WorkerUp", 1, role="cook"), "malformed: ValueError 'cook'"),
    "trajectories left out": ("keep", edit("Submitted", 5, traj=lambda ids: [id + 1 for id in ids]), "those between"),
    "engine never loaded": ("keep", without("Loaded", worker="engine-1"), "engine-1 serves no version"),
    "sampled by what others loaded": ("keep", without("Loaded", worker="engine-1"), "which engine-1 has not loaded"),
    "batch too small": ("keep", smaller_batch, "trains 3 groups; prompts_per_step is 4"),
    "cap of outstanding groups": ("keep", all_at_once, "groups are outstanding; admission allows 12"),
    "done too early": ("keep", edit("RunStart", max_steps=99), "done after 8 of 99 steps"),
    "steps beyond the last": ("keep", edit("RunStart", max_steps=5), "after all 5 steps"),
    "data not exhausted": ("keep", not_exhausted, "the data is exhausted after"),
    "starts before it was submitted": ("keep", every_start_at_0, "before it was submitted at"),
    "turn starts too early": ("keep", early_turn, "a turn starts at 0.0"),
    "busy twice": ("keep", twice("Busy", 3), "is busy from"),
    "busy spans overlap": ("keep", edit("Busy", 5, start=lambda t: t - 0.5), "is busy from"),
    "never busy": ("keep", without("Busy"), "and was never busy"),
    "dispatch older than the engine": ("keep", lowered_dispatch, "holds"),
    "released twice": ("keep", twice("Released", 1), "was released before"),
    "never released": ("keep", without("Released", version=3), "version 3 was never released"),
    "loaded twice": ("keep", twice("Loaded", 4), "loads version"),
    "no first token": ("keep", without("FirstToken"), "tokens, but no first one"),
    "one turn without first token": ("keep", no_first_token(13, 1), "but no first one"),
    "first token elsewhere": ("keep", edit("FirstToken", 5, engine="engine-7"), "not on engine-7"),
    "group of another size": ("keep", edit("RunStart", group_size=5), "group_size is 5"),
    "group submitted twice": ("keep", edit("Submitted", 4, group=2), "group 2 was submitted before"),
    "replaces one that has not failed": ("keep", replacement(replaces=1), "has not failed"),
    "replacement elsewhere": ("keep", replacement(engine="engine-9"), "on engine-9"),
    "replacement at another version": ("keep", replacement(version=-1), "dispatched at version -1; group"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["keep", "pin"])
def test_the_log_of_a_run_is_clean(mode: str) -> None:
    assert check_events(LOGS[mode]) == []


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_log_is_reported(name: str) -> None:
    mode, change, message = EDITS[name]
    events = copy.deepcopy(LOGS[mode])
    change(events)
    found = check_events(events)
    assert any(message in v.message for v in found), [str(v) for v in found[:5]]


def test_a_replacement_is_no_violation() -> None:
    events = copy.deepcopy(LOGS["keep"])
    replacement()(events)
    assert check_events(events) == []


def late(events: list[Event], ending: str) -> tuple[list[Event], int]:
    """Up to a group's end, with one member late that ends just after: the order of ``deadlines.rollout_s``."""
    i = at(events, "GroupReady", 2)
    ready = copy.deepcopy(events[i])
    lost = ready["traj"].pop()
    kept = [e for e in events[:i] if not (e["e"] == "TrajDone" and e["traj"] == lost)]
    tokens = sum(e["tokens"] for e in kept if e["e"] == "TrajDone" and e["traj"] in ready["traj"])
    if ending == "ready":
        over = {**ready, "tokens": tokens}
    else:
        over = {"e": "TrajEnd", "t": ready["t"], "traj": ready["traj"], "ending": ending, "reason": "",
                "tokens": tokens, "group": ready["group"], "group_over": True}  # fmt: skip
    return [*kept, over], lost


@pytest.mark.parametrize("ending", ["ready", "filtered", "failed"])
def test_a_member_that_is_late_may_end_just_after_its_group(ending: str) -> None:
    head, lost = late(LOGS["keep"], ending)
    end = {"e": "TrajEnd", "t": head[-1]["t"], "traj": [lost], "ending": "failed", "reason": "timeout", "tokens": 0}
    assert check_events([*head, end]) == []


def test_a_group_does_not_train_while_a_member_is_open() -> None:
    head, lost = late(LOGS["keep"], "ready")
    step = copy.deepcopy(LOGS["keep"][at(LOGS["keep"], "StepStart", 0)])
    group = head[-1]
    step.update(t=group["t"], groups=[group["group"]], traj=group["traj"])
    assert any(f"trains without {lost}" in v.message for v in check_events([*head, step]))


@pytest.mark.parametrize(("version", "clean"), [(1, True), (0, False)])
def test_a_dispatch_may_come_just_before_the_load_of_its_version_is_logged(version: int, clean: bool) -> None:
    """An engine in the loop's own process holds new weights one turn of the event loop before its Loaded."""
    events = LOGS["keep"]
    i = at(events, "Loaded", 0, version=1)
    next_id = 1 + max(id for e in events[:i] if e["e"] == "Submitted" for id in e["traj"])
    group = {"e": "Submitted", "t": events[i]["t"], "group": 900, "task": 900, "traj": [*range(next_id, next_id + 3)],
             "engine": events[i]["worker"], "version": 1}  # fmt: skip
    start = {**events[0], "guarantees": ["loaded-version"]}  # what admission allows is not the matter here
    loaded = {**events[i], "version": version}
    found = check_events([start, *events[1:i], group, loaded])
    assert (found == []) == clean
    assert clean or any("it was given work at 1 before" in v.message for v in found)


def test_rules_are_held_to_what_they_promise_and_to_nothing_else() -> None:
    events = copy.deepcopy(LOGS["keep"])
    events[0]["guarantees"].remove("whole-batches")
    smaller_batch(events)
    assert check_events(events) == []
    events = copy.deepcopy(LOGS["keep"])
    events[0]["guarantees"].append("submission-order")
    steps = [e for e in events if e["e"] == "StepStart"]
    in_order = sorted(g for e in steps for g in e["groups"]) == [g for e in steps for g in e["groups"]]
    assert not in_order
    assert {v.event for v in check_events(events) if "not in order of submission" in v.message} == {"StepStart"}


def test_a_restart_takes_all_unfinished_members(tmp_path: Path) -> None:
    events = LOGS["keep"]
    cut = at(events, "StepEnd", 2) + 1
    head = copy.deepcopy(events[:cut])
    t, done = head[-1]["t"], {e["traj"] for e in head if e["e"] == "TrajDone"}
    ended = {i for e in head if e["e"] in ("TrajEnd", "GroupReady") for i in e["traj"]}
    left = next(e for e in head if e["e"] == "Submitted" and len(set(e["traj"]) - done - ended) >= 2)
    members = [i for i in left["traj"] if i not in done | ended]
    step = sum(e["e"] == "StepEnd" for e in head)
    head += [
        {"e": "Resumed", "t": t, "version": step, "step": step, "max_steps": 8},
        {"e": "WorkerUp", "t": t, "worker": "engine-0", "role": "engine"},
        {"e": "Published", "t": t, "version": step, "checksum": "", "bytes": 0, "start": t},
        {"e": "Loaded", "t": t, "worker": "engine-0", "version": step, "mode": "keep", "start": t},
    ]
    again = {"e": "Restarted", "t": t, "group": left["group"], "traj": members, "engine": "engine-0",
             "version": left["version"]}  # fmt: skip
    assert check_events([*head, again]) == []
    wrong = [{**again, "traj": members[1:]}, {**again, "engine": "engine-1"}, {**again, "version": left["version"] - 1}]
    messages = [f"goes on without {members[0]}", "engine-1 serves no version now", "was dispatched at version"]
    for event, message in zip(wrong, messages, strict=True):
        assert any(message in v.message for v in check_events([*head, event])), message
