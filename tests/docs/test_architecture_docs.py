"""``docs/architecture.md`` names what is there: rooms, files, events, and registries."""

from __future__ import annotations

import re

import pytest
from blocks import DOCS

from stretto.kernel.event_types import TYPES

SRC = DOCS.parent / "src" / "stretto"
PAGE = (DOCS / "architecture.md").read_text()
FILES = sorted(set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.py)`", PAGE)))


@pytest.mark.parametrize("name", FILES)
def test_files_that_it_names_are_there(name: str) -> None:
    assert (SRC / name).exists() or (DOCS.parent / name).exists()


def test_it_names_enough_of_them_and_every_room() -> None:
    assert len(FILES) > 30
    rooms = {path.parent.name for path in SRC.glob("*/__init__.py")}
    listed = set(re.findall(r"`(\w+)`", PAGE.split("## The rooms")[1].split("##")[0]))
    assert rooms <= listed, rooms - listed
    assert all((SRC / room).is_dir() for room in listed - {"tests"} if room.isalpha())


def test_events_that_it_names_are_events() -> None:
    assert {"Submitted", "TrajDone", "StepStart", "Published", "Loaded"} <= set(TYPES) & set(
        re.findall(r"`(\w+)`", PAGE)
    )
