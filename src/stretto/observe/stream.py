"""Reads an event log as a stream, so that a log may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from stretto.errors import DataError
from stretto.observe.tally import Event

MALFORMED = "?"
"""Name of the event that stands for a line which isn't a JSON object."""


def stream_events(run_dir: Path | str) -> Iterator[Event]:
    """Events of ``<run_dir>/events.jsonl`` in order. A torn last line (the process was killed) is dropped; any
    other line that isn't JSON comes as ``{"e": MALFORMED, "malformed": its beginning}``.

    Raises:
        DataError: there is no event log.
    """
    path = Path(run_dir) / "events.jsonl"
    if not path.is_file():
        raise DataError(f"{run_dir}: no events.jsonl here; give a run directory (the `out` of a run)")
    return _lines(path)


def _lines(path: Path) -> Iterator[Event]:
    with open(path, "rb") as file:
        for line in file:
            if not line.strip():
                continue
            try:
                yield orjson.loads(line)
            except orjson.JSONDecodeError:
                if line.endswith(b"\n"):
                    yield {"e": MALFORMED, "malformed": line[:80].decode(errors="replace")}
