"""Run the papers' experiments (all, or those named) and write down what came out.

docs/papers/NAME.json holds every figure, docs/papers/NAME.png is the plot, docs/papers.md has conditions and notes.
``--page``: only the page anew, from the data. All of them take minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stretto.papers import PAPERS, Paper, Settings, find
from stretto.papers.catalog import LANGUAGE
from stretto.papers.run import Verdict, reproduce_all

DOCS = Path(__file__).parent
DIGITS = 4
HEAD = """# The papers

`stretto papers` lists the papers, `stretto reproduce NAME` runs an experiment and prints its figures: *here* is what
was measured, *reference* our own independent computation from the paper's formulas (or what was expected before the
first run), *paper* what the paper itself says, and where. All of them are data, in `papers/NAME.json`; this page has
the verdict, the notes for the reader and the figure.

*pass* and *FAIL* judge conditions that were set before the experiment ran here. *not reproduced*: an effect that the
paper reports, or that was expected before the first run, did not appear. *reported*: nothing separates the method from
its baseline here, so nothing is judged.
That the conditions can fail is tested by breaking the methods on purpose: `make mutants`, [mutants](mutants.md).
Where a paper leaves a constant open, the code marks our choice with [inferred].

Written by `python docs/papers.py`; seconds are those of a run on two cores, some beside another one.

"""
LANGUAGE_HEAD = """
## Training a language model

Every method with an objective also trains a small language model, on the virtual clock at exact lags: `stretto
reproduce NAME-language`. All arms of a seed have the same initial model, prompts and sampling noise; the differences
are paired, five seeds. A cell has lag/learning rate: what the method has over its rival in held-out accuracy at the
end, and over the run. *Wins*: one of the 95 % intervals lies above 0 and none below; *loses*: the other way round;
*ties*: else (of forty intervals two exclude 0 by chance). Runs that were interrupted go on when asked again. Which
arms, options and settings: `papers/language_contests.py`.

"""
CLAIM = re.compile(
    r"lag (?P<lag>[^:]*), lr (?P<rate>[^:]*): (?P<better>.*) (?P<word>wins|ties|loses) against (?P<worse>.*)"
)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="papers; default: all")
    parser.add_argument("--page", action="store_true", help="run nothing")
    parser.add_argument("--quick", action="store_true", help="the short forms")
    parser.add_argument("--out", type=Path, default=DOCS, help="where papers.md and papers/ go")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    verdicts: list[Verdict] = []
    if not options.page:
        settings = Settings(quick=options.quick, first_seed=options.first_seed)
        chosen = [find(name) for name in options.names] or None

        def done(verdict: Verdict) -> None:  # at once: what is measured is not lost with what comes after
            say(verdict)
            (options.out / "papers" / f"{verdict.paper.name}.json").write_text(data(verdict))

        verdicts = reproduce_all(settings, options.out / "papers", options.jobs, done, chosen)
    (options.out / "papers.md").write_text(page(options.out / "papers"))
    sys.exit(any(v.outcome.failed for v in verdicts))


def say(verdict: Verdict) -> None:
    """Progress."""
    print(f"{verdict.paper.name}: {verdict.outcome.verdict}, {verdict.seconds:.0f} s", flush=True)


def data(verdict: Verdict) -> str:
    """What is kept of a verdict, as JSON with a line for each check and note; numbers to four digits."""
    record = verdict.record()
    figure = None if verdict.figure is None else Path(verdict.figure).name
    return lines({**short(record), "seconds": round(verdict.seconds), "figure": figure})


def lines(record: dict[str, Any]) -> str:
    """``record`` as JSON, a line for each entry and for each item of its lists."""
    rows = []
    for key, value in record.items():
        if isinstance(value, list) and value:
            items = ",\n".join("  " + json.dumps(item, ensure_ascii=False) for item in value)
            rows.append(f' "{key}": [\n{items}\n ]')
        else:
            rows.append(f' "{key}": {json.dumps(value, ensure_ascii=False)}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


def short(value: Any) -> Any:
    """Numbers with four significant digits, however deep."""
    if isinstance(value, dict):
        return {k: short(v) for k, v in value.items()}
    if isinstance(value, list):
        return [short(v) for v in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.{DIGITS}g}")
    return value


def page(folder: Path) -> str:
    """The page, from the data in ``folder``."""
    kept = {p.name: json.loads((folder / f"{p.name}.json").read_text()) for p in PAPERS
            if (folder / f"{p.name}.json").exists()}  # fmt: skip
    rows = ["| paper | arXiv | claim | verdict | seconds |", "| --- | --- | --- | --- | --- |"]
    for p in PAPERS:
        name, verdict, seconds = p.name, "planned", ""
        if p.name in kept:
            name = f"[{p.name}](#{p.name})"
            verdict, seconds = kept[p.name]["verdict"], str(kept[p.name]["seconds"])
        rows.append(f"| {name} | {p.arxiv or ''} | {p.claim} | {verdict} | {seconds} |")
    sections = "".join(section(p, kept[p.name]) for p in PAPERS if p.name in kept)
    return HEAD + "\n".join(rows) + "\n" + sections + language(folder)


def language(folder: Path) -> str:
    """The experiments with a language model: a row a claim, a line and a figure a paper."""
    rows, said = ["| experiment | claim | wins | ties | loses | seconds |", "| --- | --- | --- | --- | --- | --- |"], []
    for experiment in LANGUAGE:
        path = folder / f"{experiment.name}.json"
        if not path.exists():
            rows.append(f"| {experiment.name} | not run yet |  |  |  |  |")
            continue
        kept = json.loads(path.read_text())
        claims: dict[str, dict[str, list[str]]] = {}
        for check in kept["checks"]:
            if found := CLAIM.fullmatch(check["name"]):
                final, area = (check["here"][part][0] for part in ("final", "area"))
                claims.setdefault(f"{found['better']} against {found['worse']}", {}).setdefault(
                    found["word"], []).append(f"{found['lag']}/{found['rate']}: {final:+.2f}, {area:+.2f}")  # fmt: skip
        data = f"[{experiment.name}](papers/{experiment.name}.json)"
        for claim, words in claims.items():
            cells = " | ".join("; ".join(words.get(word, [])) for word in ("wins", "ties", "loses"))
            rows.append(f"| {data} | {claim} | {cells} | {kept['seconds']} |")
        said.append(f"* {kept['notes'][-1].split(' (tried')[0].rstrip('.')}.")
        if kept["figure"]:
            said.append(f"\n  ![{experiment.name}](papers/{kept['figure']})\n")
    return LANGUAGE_HEAD + "\n".join(rows) + "\n\n" + "\n".join(said) + "\n"


def section(paper: Paper, kept: dict[str, Any]) -> str:
    """One paper: the verdict, the notes, the figure."""
    words = Counter(c["verdict"] for c in kept["checks"])
    counted = ", ".join(
        f"{words[word]} {word}" for word in ("pass", "FAIL", "not reproduced", "reported") if words[word]
    )
    data = f"[{paper.name}.json](papers/{paper.name}.json)"
    out = [f"\n## {paper.name}\n", f"*{paper.title}*. `stretto reproduce {paper.name}`\n",
           f"{len(kept['checks'])} figures: {counted} ({data}).\n"]  # fmt: skip
    out += [f"* {c['verdict']}: {c['name']} ({c['condition']})" for c in kept["checks"]
            if c["verdict"] == "FAIL" or (c["verdict"] == "not reproduced" and not told(c, kept["notes"]))]  # fmt: skip
    out += [f"* {note}" for note in kept["notes"]]
    if kept["figure"]:
        out.append(f"\n![{paper.name}](papers/{kept['figure']})")
    return "\n".join(out) + "\n"


def told(check: dict[str, Any], notes: list[str]) -> bool:
    """Does a note say of this comparison of learning methods what its line would?"""
    return check["name"].startswith("learning, ") and any(note.startswith("Learning: ") for note in notes)


if __name__ == "__main__":
    main()
