"""Write docs/papers.md and its figures: run every experiment, say what came out. Takes minutes on two cores."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from stretto.papers import PAPERS, Settings
from stretto.papers.run import Verdict, reproduce_all, text, word

DOCS = Path(__file__).parent
HEAD = """# The papers

Written by `python docs/papers.py` from `stretto reproduce --all`{options}: {seconds:.0f} seconds on two cores.

`stretto papers` lists the papers, `stretto reproduce NAME` runs an experiment: the published figure, ours, the
condition and the verdict, and a figure file. *pass* and *FAIL* are conditions that were set before the experiment ran
here; *reported* figures have none. A note says in plain words what did not appear.

"""


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the short forms")
    parser.add_argument("--out", type=Path, default=DOCS, help="where papers.md and papers/ go")
    parser.add_argument("--first-seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    settings = Settings(quick=options.quick, first_seed=options.first_seed)
    verdicts = reproduce_all(settings, options.out / "papers", 2, lambda v: print(v.paper.name, round(v.seconds), "s"))
    said = " --quick" if options.quick else ""
    page = HEAD.format(options=said, seconds=time.perf_counter() - start) + overview(verdicts)
    for verdict in verdicts:
        page += section(verdict)
    (options.out / "papers.md").write_text(page)
    sys.exit(not all(v.outcome.passed for v in verdicts))


def overview(verdicts: list[Verdict]) -> str:
    """All papers in one table."""
    found = {v.paper.name: v for v in verdicts}
    lines = ["| paper | arXiv | claim | verdict | seconds |", "| --- | --- | --- | --- | --- |"]
    for paper in PAPERS:
        verdict = found.get(paper.name)
        if verdict is None:
            said = ("planned", "")
        else:
            said = ("pass" if verdict.outcome.passed else "FAIL", f"{verdict.seconds:.0f}")
        name = f"[{paper.name}](#{paper.name})" if verdict else paper.name
        lines.append(f"| {name} | {paper.arxiv or ''} | {paper.claim} | {said[0]} | {said[1]} |")
    return "\n".join(lines) + "\n"


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
