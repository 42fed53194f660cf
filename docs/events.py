"""Writes ``docs/events.md`` from the types of events: ``python docs/events.py``.

A test compares the file with what this writes, so that the page can't go stale.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as a script it is there already

from reference import cell

from stretto.kernel.event_shapes import fields_of, say
from stretto.kernel.event_types import TYPES

TARGET = Path(__file__).with_name("events.md")
HEAD = """# The event log

Written from `kernel/event_types.py` by `python docs/events.py`; don't edit.

A run's log says what happened, one JSON object a line, in the order in which the loop learnt it. It lies in
`events.jsonl.gz` (`stretto log RUN` prints it) or, with `logging.events = "plain"`, in `events.jsonl`. Metrics, the
report and the checker are computed from it alone. Trajectories are numbered 0, 1, ... in the order in which they are
submitted, in the whole run; to which group one belongs is said in its Submitted. Those of evaluations have no events.

Every event has `e`, its name, and `t`, seconds on the run's clock; further fields are below. One in brackets isn't in
every event of its name.
"""


def main() -> None:
    """Write the file."""
    TARGET.write_text(text())


def text() -> str:
    """The page."""
    lines = [HEAD.rstrip()]
    for name, kind in TYPES.items():
        lines += ["", f"## {name}", "", " ".join((kind.__doc__ or "").split()), "", "| field | type | what |"]
        lines.append("| --- | --- | --- |")
        for field in fields_of(kind):
            shown = f"`{field.name}`" if field.required else f"[`{field.name}`]"
            lines.append(f"| {shown} | {cell(say(field.type))} | {cell(field.what)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
