"""Types of events: those that the log takes, as the page shows them; a wrong event is told from a right one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from stretto.kernel.event_shapes import event_faults, fields_of
from stretto.kernel.event_types import TYPES
from stretto.kernel.events import NAMES
from stretto.kernel.trajectory_events import Submitted, TrajDone

ROOT = Path(__file__).parents[2]
SUBMITTED = {"e": "Submitted", "t": 0.0, "group": 3, "task": 3, "traj": [5, 6], "engine": "w", "version": 0}


def test_each_type_says_its_own_name() -> None:
    assert set(NAMES) == set(TYPES)
    for name, kind in TYPES.items():
        assert get_args(get_type_hints(kind)["e"]) == (name,)
        assert kind.__doc__


def test_what_may_be_missing_is_told_from_what_may_not() -> None:
    assert [f.name for f in fields_of(Submitted) if not f.required] == ["replaces", "pin"]
    assert [f.name for f in fields_of(TrajDone) if not f.required] == ["rewards"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, ""),
        ({"pin": 4}, ""),
        ({"t": 2}, ""),
        ({"e": "Submited"}, "no event is called 'Submited'; did you mean 'Submitted'"),
        ({"e": None}, "no event is called None"),
        ({"t": "now"}, "Submitted: t is 'now'"),
        ({"t": True}, "Submitted: t is True"),
        ({"group": None}, "Submitted: group is None, not whole number"),
        ({"group": 3.0}, "Submitted: group is 3.0"),
        ({"version": True}, "Submitted: version is True"),
        ({"traj": [5, "6"]}, "Submitted: traj is [5, '6'], not [whole number, ...]"),
        ({"engin": "w"}, "Submitted: unknown field 'engin'; did you mean 'engine'"),
    ],
)
def test_a_wrong_event_is_named(change: dict[str, object], said: str) -> None:
    faults = event_faults({**SUBMITTED, **change})
    assert [fault[: len(said)] for fault in faults] == ([said] if said else [])


def test_a_missing_field_is_named_and_nested_ones_are_looked_at() -> None:
    assert event_faults({k: v for k, v in SUBMITTED.items() if k != "task"}) == ["Submitted has no task"]
    step = {"e": "StepStart", "t": 1.0, "step": 0, "version": 0, "groups": [3], "traj": [5], "tokens": 2,
            "staleness": {"total": 0, "generation": 0, "waiting": 0, "max": 0}}  # fmt: skip
    assert event_faults(step) == []
    del step["staleness"]["max"]  # type: ignore[attr-defined]
    assert len(event_faults(step)) == 1
    assert event_faults({"e": "TrajDone", "t": 0.0})[0] == "TrajDone has no traj"


def test_the_page_is_what_the_types_say() -> None:
    spec = importlib.util.spec_from_file_location("events_page", ROOT / "docs" / "events.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    sys.modules["events_page"] = page
    spec.loader.exec_module(page)
    assert (ROOT / "docs" / "events.md").read_text() == page.text(), "python docs/events.py"
