"""Write docs/papers.md and its figures: run every experiment (or only those named, the others' lines stay), say what
came out. Takes minutes on two cores."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from stretto.papers import PAPERS, Settings, find
from stretto.papers.run import Verdict, reproduce_all, text, word

DOCS = Path(__file__).parent
HEAD = """# The papers

Written by `python docs/papers.py` from `stretto reproduce`; seconds are those of a run on two cores, some
beside another one.

`stretto papers` lists the papers, `stretto reproduce NAME` runs an experiment: the published figure, ours, the
condition and the verdict, and a figure file. *pass* and *FAIL* are conditions that were set before the experiment ran
here; *reported* figures have none. A note says in plain words what did not appear.

"""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="papers; default: all")
    parser.add_argument("--quick", action="store_true", help="the short forms")
    parser.add_argument("--out", type=Path, default=DOCS, help="where papers.md and papers/ go")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    settings = Settings(quick=options.quick, first_seed=options.first_seed)
    figures = options.out / "papers"
    chosen = [find(name) for name in options.names] or None
    verdicts = reproduce_all(settings, figures, options.jobs, say, chosen)
    page = options.out / "papers.md"
    rows, sections = earlier(page) if chosen else ({}, {})
    for verdict in verdicts:
        rows[verdict.paper.name], sections[verdict.paper.name] = row(verdict), section(verdict)
    page.write_text(HEAD + overview(rows) + "".join(sections[p.name] for p in PAPERS if p.name in sections))
    sys.exit(not all(v.outcome.passed for v in verdicts))


def say(verdict: Verdict) -> None:
    """Progress."""
    print(verdict.paper.name, "pass" if verdict.outcome.passed else "FAIL", round(verdict.seconds), "s", flush=True)


def earlier(page: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Rows of the overview and sections of the page as it stands, by paper."""
    head, *parts = re.split(r"(?=^\n## )", page.read_text(), flags=re.MULTILINE)
    sections = {re.search(r"^## (\S+)$", part, re.MULTILINE)[1]: part for part in parts}
    return {name: line for line in head.splitlines() for name in re.findall(r"^\| \[(\S+)\]", line)}, sections


def overview(rows: dict[str, str]) -> str:
    """All papers in one table; those without an experiment are planned."""
    lines = ["| paper | arXiv | claim | verdict | seconds |", "| --- | --- | --- | --- | --- |"]
    lines += [rows.get(p.name, f"| {p.name} | {p.arxiv or ''} | {p.claim} | planned |  |") for p in PAPERS]
    return "\n".join(lines) + "\n"


def row(verdict: Verdict) -> str:
    """One paper's line in the overview."""
    paper, word = verdict.paper, "pass" if verdict.outcome.passed else "FAIL"
    name = f"[{paper.name}](#{paper.name})"
    return f"| {name} | {paper.arxiv or ''} | {paper.claim} | {word} | {verdict.seconds:.0f} |"


def section(verdict: Verdict) -> str:
    """One paper: what was measured, the notes, the figure."""
    paper = verdict.paper
    lines = [f"\n## {paper.name}\n", f"*{paper.title}*. `stretto reproduce {paper.name}`\n"]
    lines += ["| what | published | ours | condition | verdict |", "| --- | --- | --- | --- | --- |"]
    for check in verdict.outcome.checks:
        cells = [check.name, text(check.published), text(check.measured), check.condition, word(check)]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines.append("")
    lines += [f"* {note}" for note in verdict.outcome.notes]
    if verdict.figure:
        lines.append(f"\n![{paper.name}](papers/{Path(verdict.figure).name})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
