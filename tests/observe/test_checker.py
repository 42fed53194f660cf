"""The checker passes every valid log and catches each way of breaking one."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counting import calls
from stretto.kernel.errors import DataError
from stretto.observe.checker import check_events, check_run
from stretto.observe.checker_state import MAX_VIOLATIONS

from .synthetic import Event, synthetic

BASE = synthetic(steps=12, seed=1, skip_at=(4,), turns=3)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10_000),
    steps=st.integers(0, 8),
    lag_bound=st.integers(0, 5),
    group_size=st.integers(1, 5),
    engines=st.integers(1, 3),
    turns=st.integers(1, 3),
    version=st.integers(0, 3),
)
def test_valid_logs_pass(**options: int) -> None:
    version = options.pop("version")
    assert check_events(synthetic(start_version=version, **options)) == []


def test_every_prefix_of_a_valid_log_passes() -> None:
    """A crash may cut the log anywhere."""
    for end in range(0, len(BASE), 7):
        assert check_events(BASE[:end]) == []


def nth(events: list[Event], name: str, k: int = 0, **match: Any) -> int:
    """Position of the k-th event of that name (whose fields equal ``match``)."""
    found = [i for i, e in enumerate(events) if e["e"] == name and all(e[key] == v for key, v in match.items())]
    return found[k]


def mutate(name: str, k: int = 0, /, **fields: Any) -> Callable[[list[Event]], None]:
    """Set fields of an event; a callable computes the new value from the old one."""

    def change(events: list[Event]) -> None:
        event = events[nth(events, name, k)]
        for key, value in fields.items():
            event[key] = value(event[key]) if callable(value) else value

    return change


def drop(name: str, k: int = 0, **match: Any) -> Callable[[list[Event]], None]:
    return lambda events: events.pop(nth(events, name, k, **match)) and None


def double(name: str, k: int = 0) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at = nth(events, name, k)
        events.insert(at + 1, copy.deepcopy(events[at]))

    return change


def staleness(**parts: int) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        claimed = events[nth(events, "StepStart", 5)]["staleness"]
        for key, delta in parts.items():
            claimed[key] += delta

    return change


def steal(events: list[Event]) -> None:
    """A member leaves its group's batch."""
    event = events[nth(events, "StepStart", 2)]
    event["traj"] = event["traj"][1:]


def train_again(events: list[Event]) -> None:
    first, later = events[nth(events, "StepStart", 0)], events[nth(events, "StepStart", 2)]
    later["groups"] = [*later["groups"], first["groups"][0]]
    later["traj"] = [*later["traj"], first["traj"][0]]


def swap_versions(events: list[Event]) -> None:
    event = next(e for e in events if e["e"] == "TrajDone" and len(e["versions"]) > 1)
    event["versions"].reverse()


def no_reward(events: list[Event]) -> None:
    ids = set(events[nth(events, "StepStart", 1)]["traj"])
    next(e for e in events if e["e"] == "TrajDone" and e["traj"] in ids)["reward"] = None


def end_while_training(events: list[Event]) -> None:
    at = nth(events, "StepStart", 1)
    event = {"e": "TrajEnd", "t": events[at]["t"], "traj": events[at]["traj"][:1], "ending": "rejected",
             "reason": "stale", "tokens": 0}  # fmt: skip
    events.insert(at + 1, event)


def tighten_bound(events: list[Event]) -> None:
    events[0]["lag_bound"] = 1


def publish_skipped(events: list[Event]) -> None:
    at = nth(events, "StepEnd", skipped=True)
    version = events[at]["version"]
    events.insert(at + 1, {"e": "Published", "t": events[at]["t"], "version": version + 1, "checksum": "x",
                           "bytes": 1, "start": events[at]["t"]})  # fmt: skip


def claim_stranger(events: list[Event]) -> None:
    first, second = nth(events, "GroupReady", 0), nth(events, "GroupReady", 1)
    events[second]["traj"] = [*events[second]["traj"], events[first]["traj"][0]]


def use_released(events: list[Event]) -> None:
    """A trajectory that starts long after version 0 was released claims to be sampled by it."""
    event = [e for e in events if e["e"] == "TrajDone"][-1]
    event["versions"] = [[0, event["tokens"]]]


def release_served(events: list[Event]) -> None:
    events[nth(events, "Released", 3)]["version"] += 1


def load_backwards(events: list[Event]) -> None:
    events[nth(events, "Loaded", 3)]["version"] -= 2


def resumed(step: int, version: int) -> Callable[[list[Event]], None]:
    def change(events: list[Event]) -> None:
        at = nth(events, "StepEnd", 5)
        event = {"e": "Resumed", "t": events[at]["t"], "version": version, "step": step, "max_steps": 12}
        events.insert(at + 1, event)

    return change


def late_first_token(events: list[Event]) -> None:
    at = nth(events, "TrajDone", 3)
    events.insert(at + 1, {"e": "FirstToken", "t": events[at]["t"], "traj": [events[at]["traj"]], "request": [99],
                           "engine": "engine-0"})  # fmt: skip


def busy_until(seconds: float) -> Callable[[list[Event]], None]:
    return mutate("Busy", 2, end=lambda end: end + seconds)


MUTATIONS: dict[str, tuple[Callable[[list[Event]], None], str]] = {
    "submitted twice": (double("Submitted", 2), "submitted before"),
    "never submitted": (drop("Submitted", 2), "never submitted"),
    "done twice": (double("TrajDone", 3), "done twice"),
    "never done": (drop("TrajDone", 3), "not done"),
    "ended twice": (double("TrajEnd"), "has ended as"),
    "never ended": (drop("TrajEnd", -1), "still open"),
    "unknown ending": (mutate("TrajEnd", ending="lost"), "unknown ending"),
    "ends while it trains": (end_while_training, "has ended as rejected"),
    "lost tokens": (mutate("TrajEnd", tokens=lambda n: n + 1), "tokens lost"),
    "ready twice": (double("GroupReady", 1), "ready twice"),
    "group claims a stranger": (claim_stranger, "claims trajectory"),
    "group version": (mutate("GroupReady", 30, version=lambda v: v - 1), "published is"),
    "group tokens": (mutate("GroupReady", 2, tokens=lambda n: n + 1), "its members have"),
    "never ready": (drop("GroupReady", 0), "is not ready"),
    "group not whole": (steal, "trains without"),
    "trained twice": (train_again, "is not ready"),
    "in the batch twice": (mutate("StepStart", 1, traj=lambda ids: [*ids, ids[0]]), "twice in the batch"),
    "absent reward trains": (no_reward, "no reward"),
    "versions decrease": (swap_versions, "after"),
    "token from the future": (mutate("TrajDone", 0, versions=lambda v: [[99, v[0][1]]]), "published is"),
    "version nobody loaded": (drop("Loaded", 0), "no engine has loaded"),
    "version already released": (use_released, "released before it started"),
    "version counts": (mutate("TrajDone", 2, tokens=lambda n: n + 1), "but versions of"),
    "older than its dispatch": (mutate("Submitted", 30, version=lambda v: v + 1), "dispatched at"),
    "staleness total": (staleness(total=1), "staleness total"),
    "staleness split": (staleness(generation=1, waiting=-1), "staleness generation"),
    "staleness max": (staleness(max=-1), "staleness max"),
    "lag bound": (tighten_bound, "lag bound 1 broken"),
    "step tokens": (mutate("StepStart", 1, tokens=lambda n: n - 1), "its trajectories have"),
    "step version": (mutate("StepStart", 3, version=lambda v: v + 1), "the learner is at"),
    "step label": (mutate("StepStart", 3, step=lambda n: n + 1), "is labelled step"),
    "two steps at once": (drop("StepEnd", 1), "has not ended"),
    "end without start": (double("StepEnd", 1), "has not started"),
    "skipped step counts": (mutate("StepEnd", 4, skipped=False), "ends at version"),
    "skipped step publishes": (publish_skipped, "the learner made"),
    "gap in published": (drop("Published", 2), "is published after"),
    "published twice": (double("Published", 2), "is published after"),
    "loaded before published": (mutate("Loaded", 3, version=lambda v: v + 5), "published is"),
    "loads backwards": (load_backwards, "after"),
    "released while served": (release_served, "while engine-0 serves it"),
    "time runs backwards": (mutate("GroupReady", 4, t=0.0), "runs backwards"),
    "ends before it starts": (mutate("Busy", 2, start=lambda s: s + 9), "after its end"),
    "more rows than slots": (mutate("Busy", 1, rows=25.0), "in 24 slots"),
    "ledger": (lambda events: events[-1]["ledger"].update(trained=0), "ledger says 0 trained"),
    "after the end": (lambda events: events.append({**events[1], "t": events[-1]["t"]}), "after RunEnd"),
    "no start": (lambda events: events.pop(0) and None, "before RunStart"),
    "a second start": (double("RunStart"), "second RunStart"),
    "missing field": (lambda events: events[nth(events, "TrajDone")].pop("versions") and None, "malformed"),
    "unknown event": (mutate("Busy", 0, e="Bsuy"), "unknown event"),
    "evaluates what nobody loaded": (mutate("Eval", 1, version=77), "no engine has loaded"),
    "checkpoint label": (mutate("Checkpoint", 0, step=lambda n: n - 1), "the log is at"),
    "resumes at a wrong step": (resumed(6, 5), "continues at step"),
    "resumes at a wrong version": (resumed(5, 6), "continues at version"),
    "goes on without a restart": (resumed(5, 5), "its group was not restarted"),
    "first token twice": (double("FirstToken", 2), "the first token of request"),
    "first token of a stranger": (mutate("FirstToken", 2, traj=[99_999]), "was never submitted"),
    "first token after the end": (late_first_token, "a first token after its end"),
    "a wait that never began": (drop("EnvStarted", 3), "that did not start at"),
    "a wait that ends twice": (double("EnvDone", 3), "that did not start at"),
    "a wait of another name": (mutate("EnvDone", 3, what="nap"), "'nap' ends that did not start at"),
    "busy after the event": (busy_until(1.0), "logged at"),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_log_is_caught(name: str) -> None:
    change, message = MUTATIONS[name]
    events = copy.deepcopy(BASE)
    change(events)
    found = check_events(events)
    assert any(message in v.message for v in found), [str(v) for v in found[:5]]
    assert all(1 <= v.line <= len(events) for v in found)


def test_the_line_of_a_violation_is_the_line_of_the_file() -> None:
    events = copy.deepcopy(BASE)
    at = nth(events, "StepStart", 3)
    events[at]["staleness"]["total"] += 1
    assert {v.line for v in check_events(events)} == {at + 1}


@pytest.mark.parametrize("partial", [True, False])
def test_a_resumed_run_goes_on_with_ready_groups_and_restarts_the_others(partial: bool) -> None:
    cut = nth(BASE, "Released", 5) + 1
    prefix = copy.deepcopy(BASE[:cut])
    t, version = prefix[-1]["t"], prefix[-1]["version"] + 1
    done = {e["traj"] for e in prefix if e["e"] == "TrajDone"}
    over = {i for e in prefix if e["e"] in ("TrajEnd", "StepStart") for i in e["traj"]}
    ready = {e["group"] for e in prefix if e["e"] == "GroupReady"}
    head = [
        {"e": "Resumed", "t": t, "version": version, "step": version, "max_steps": 12},
        {"e": "WorkerUp", "t": t, "worker": "engine-0", "role": "engine"},
        {"e": "Published", "t": t, "version": version, "checksum": "0", "bytes": 1, "start": t},
        {"e": "Loaded", "t": t, "worker": "engine-0", "version": version, "mode": "keep", "start": t},
    ]
    later: list[Event] = []
    for e in [e for e in prefix if e["e"] == "Submitted" and e["group"] not in ready]:
        members = [i for i in e["traj"] if i not in done | over]
        if not members:
            continue
        at = e["version"] if partial else version
        head.append({"e": "Restarted", "t": t, "group": e["group"], "traj": members, "engine": "engine-0",
                     "version": at})  # fmt: skip
        for id in members:
            if at > e["version"]:
                later.append({"e": "FirstToken", "t": t + 1, "traj": [id], "request": [0], "engine": "engine-0"})
            runs = [[at, 3], [version, 2]] if partial and at < version else [[version, 5]]
            later.append({"e": "TrajDone", "t": t + 1, "traj": id, "group": e["group"], "start": t, "tokens": 5,
                          "length": 9, "versions": runs, "turns": 1, "reward": 1.0, "finish": "stop",
                          "terminated": True, "truncated": False})  # fmt: skip
    assert len(head) > 5
    assert any(len(e.get("versions", ())) > 1 for e in later) == partial
    assert check_events([*prefix, *head, *later]) == []


def test_a_run_without_end_is_incomplete_but_no_violation(tmp_path: Any) -> None:
    lines = b"".join(orjson.dumps(e) + b"\n" for e in BASE[:200]) + b'{"e":"Traj'
    (tmp_path / "events.jsonl").write_bytes(lines)
    result = check_run(tmp_path)
    assert (result.events, result.violations, result.complete) == (200, [], False)


def test_a_whole_run_is_complete(tmp_path: Any) -> None:
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in BASE))
    result = check_run(tmp_path)
    assert (result.events, result.violations, result.complete) == (len(BASE), [], True)


def test_a_torn_line_in_the_middle_is_a_violation(tmp_path: Any) -> None:
    lines = [orjson.dumps(e) for e in BASE]
    lines[5] = lines[5][:9]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert [v.line for v in check_run(tmp_path).violations if "not a JSON object" in v.message] == [6]


def test_an_interrupted_run_may_leave_work_open() -> None:
    events = copy.deepcopy(BASE)
    last = nth(events, "TrajEnd", -1)
    lost = len(events.pop(last)["traj"])
    end = events[-1]
    end["ledger"]["cancelled"] -= lost
    end["ledger"]["open"] = lost
    assert any("normal end" in v.message for v in check_events(events))
    end["reason"] = "interrupted"
    assert check_events(events) == []


def test_no_log_is_a_clear_error(tmp_path: Any) -> None:
    with pytest.raises(DataError, match=r"no events\.jsonl"):
        check_run(tmp_path)


def test_a_hopeless_log_lists_a_limited_number_of_violations() -> None:
    events = [BASE[0], *({"e": "TrajEnd", "t": 0.0, "traj": [i], "ending": "failed", "tokens": 0} for i in range(3000))]
    found = check_events(events)
    assert len(found) == MAX_VIOLATIONS + 1
    assert found[-1].message == "2000 more violations are not listed"


def test_an_event_costs_a_few_calls_however_long_the_run() -> None:
    runs = [synthetic(steps=steps, prompts_per_step=8, group_size=8, max_num_seqs=128) for steps in (15, 60)]
    short, long = (calls(lambda: check_events(events)) / len(events) for events in runs)  # noqa: B023
    assert long < 1.1 * short
    assert long < 25
