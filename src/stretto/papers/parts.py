"""Papers whose experiment has several named parts: run them in turn, join what they found."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping

from stretto.observe.canvas import Canvas
from stretto.papers.base import Outcome, Settings


def together(parts: Mapping[str, Callable[[Settings], Outcome]], settings: Settings) -> Outcome:
    """All parts in turn: checks and notes under the part's name, figures one below the other."""
    found: dict[str, Outcome] = {}
    for name, run in parts.items():
        start = time.perf_counter()
        found[name] = run(settings)
        settings.say(f"{name}: {found[name].verdict}, {time.perf_counter() - start:.0f} s")
    checks = [dataclasses.replace(c, name=f"{part}: {c.name}") for part, o in found.items() for c in o.checks]
    notes = [f"{part}: {note}" for part, o in found.items() for note in o.notes]
    drawn = [o.plot for o in found.values() if o.plot is not None]
    if not drawn:
        return Outcome(checks, notes)

    def plot(figure: Canvas) -> None:
        width, height = figure.figure.get_size_inches()
        figure.figure.set_size_inches(width, height * len(drawn))
        for fill, rows in zip(drawn, figure.subfigures(len(drawn), 1, squeeze=False), strict=True):
            fill(rows[0])

    return Outcome(checks, notes, plot)
