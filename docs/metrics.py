"""Writes ``docs/metrics.md`` from what the modules declare: ``python docs/metrics.py``.

A test compares the file with what this writes, so that the page can't go stale.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # as a script it is there already

from reference import cell

from stretto.kernel.metrics import Declared, Metric, Section, declarations

ROOT = Path(__file__).parents[1]
TARGET = Path(__file__).with_name("metrics.md")
HEAD = """# Metrics

Written from the modules that compute them by `python docs/metrics.py`; don't edit.

Every number that a run writes into `metrics.jsonl`, the report and the trackers: a row for each learner step, and one
for each evaluation. A row's *interval* is the time since the row before it. *Healthy* is an identity where it says
**exact** (another value is a fault: `stretto check RUN`), a rule of thumb elsewhere. L is `lag_bound`. `{a,b}` stands
for several names, `<...>` for what the run fills in; a name without a value in a row is left out of it. Each name is
computed in one place, the *module*.
"""
INTRO = {
    Section.POLICY: "Ratios are the current policy's probability of a token over that at which it was sampled, at the "
    "start of the step.",
}
FIRST = {
    Section.ROW: ("observe.interval", "observe.completed"),
    Section.REWARD: ("observe.completed", "observe.tally"),
    Section.STALENESS: ("observe.tally", "learner.stepmetrics"),
    Section.LEARNER: ("learner.stepmetrics", "observe.interval"),
    Section.WORK: ("observe.interval",),
    Section.TIME: ("observe.times",),
    Section.LATE: ("runtime.late",),
}
"""The modules whose metrics a section begins with; the others follow by name."""


def main() -> None:
    """Write the file."""
    TARGET.write_text(text())


def producers() -> list[Declared]:
    """All modules that declare metrics, imported."""
    source = ROOT / "src"
    for path in sorted(source.rglob("*.py")):
        if "= declare(\n" in path.read_text():
            importlib.import_module(".".join(path.relative_to(source).with_suffix("").parts))
    return [own for own in declarations() if own.module.startswith("stretto.")]


def text() -> str:
    """The whole page."""
    parts = [HEAD]
    found = producers()
    for section in Section:
        parts.append(f"## {section.value}\n")
        if section in INTRO:
            parts.append(INTRO[section] + "\n")
        first = [f"stretto.{name}" for name in FIRST.get(section, ())]
        found.sort(key=lambda own: (first.index(own.module) if own.module in first else len(first), own.module))
        parts.append(table([(own, metric) for own in found for metric in own.metrics if metric.section is section]))
    return "\n".join(parts)


def table(found: list[tuple[Declared, Metric]]) -> str:
    """One row per declaration; without what is healthy where no one says."""
    judged = any(metric.healthy or metric.otherwise for _, metric in found)
    more = ["healthy", "what to do otherwise"] if judged else []
    heads = ["name", "unit", "what it is", *more, "module"]
    rows = [heads, ["---"] * len(heads)]
    for own, metric in found:
        names = ", ".join(f"`{name}`" for name in metric.name.split())
        advice = [metric.healthy, metric.otherwise] if judged else []
        rows.append([names, metric.unit, metric.what, *advice, link(own)])
    return "\n".join(f"| {' | '.join(map(cell, row))} |" for row in rows) + "\n"


def link(own: Declared) -> str:
    """The module, as a link to its source."""
    name = own.module.removeprefix("stretto.")
    return f"[`{name}`](../src/stretto/{name.replace('.', '/')}.py)"


if __name__ == "__main__":
    main()
