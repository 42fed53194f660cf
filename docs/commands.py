"""Runs the commands of README and the docs as they stand there, and writes how long each takes: ``docs/commands.md``.

``python docs/commands.py [PAGE ...]``: each page's commands in order, in a scratch directory that holds the files that
the page shows. What fails, or takes longer than ``--limit-s``, is said at once, and the exit code is 1. Times of pages
that are left out stay as they are. A command that needs nothing of its page runs once for all pages that have it;
``--missing`` leaves out what has a time, but for commands that a later one of their page needs. A fast test holds that
each command is in the table and asks for what exists.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "commands.md"
INLINE = re.compile(r"(?<!`)`((?:stretto|python|make) [^`]+)`(?!`)")
ALONE = ("doctor", "objectives", "papers", "recipes")
"""Commands of stretto that need nothing else; others, named alone in a sentence, are no whole command."""
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAMS = ("stretto", "python", "make")
ELSEWHERE = {
    "make test": "run by `.ci/run`",
    "make quickstart": "run by hand at each release",
    "make slow": "run by hand at each release",
    "make benchmarks": "run by hand at each release",
    "make mutants": "run by hand at each release",
    "make docs": "run by hand at each release",
    "tensorboard --logdir runs": "a server: it runs until it is stopped",
    "stretto reproduce --all": "the papers of docs/papers.md, one after the other",
}
"""Commands that this script leaves to others."""
PAPER = re.compile(r"stretto reproduce ([\w-]+)")
BENCHMARK = re.compile(r"python benchmarks/(?!memory|saved_model)\w+\.py\b")
FREE = re.compile(
    r"stretto (reproduce|papers|recipes|doctor|objectives|compare|calibrate)\b[^:]*$|stretto train (own-)?smollm2\b"
    r"|python (benchmarks|examples)/|python -m stretto"
)
"""How commands begin that need nothing of their page: no file, no earlier command."""
LONG = "not run by the script: hours"
MISSING = "not run yet"
Rows = dict[tuple[str, str], tuple[str, str]]
"""(page, command): (clock, CPU), as the page has them."""
HEAD = """# The commands of README and docs

Written by `python docs/commands.py`, which runs them. Seconds on two cores of a shared server: on the clock, and of the
processors. The machine was not always free: where the clock says far more than the processors, it was busy elsewhere.

| page | command | clock, s | CPU, s |
| --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Command:
    """A line (or several, joined) that a page asks to type. ``page``: relative to the checkout."""

    page: str
    text: str
    tag: str

    @property
    def words(self) -> list[str]:
        """Its words, as a shell splits them."""
        return shlex.split(self.text)


def pages() -> list[Path]:
    """README and every page of the docs but those that scripts write."""
    written = ("commands.md", "config.md")
    return [ROOT / "README.md", *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.name not in written)]


def commands(page: Path) -> Iterator[Command]:
    """The page's commands, in order: in fenced blocks, without comments; then those in sentences and comments that are
    whole, without a placeholder (RUN, ...) or a module that the page doesn't show."""
    text, seen = page.read_text(), set[str]()
    for tag, block in FENCE.findall(text):
        if tag.split(" ")[0] not in ("", "sh", "bash"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            bare = re.sub(r"^\.venv/bin/", "", re.sub(r"\s+#.*$", "", line)).strip()
            if bare.split(" ")[0] in (*PROGRAMS, "tensorboard"):
                yield Command(str(page.relative_to(ROOT)), re.sub(r"\s+", " ", bare), tag)
                seen.add(re.sub(r"\s+", " ", bare))
    for found in INLINE.findall(text.replace("```", "")):
        words = found.split()
        alone = words[0] == "stretto" and len(words) == 2 and words[1] not in ALONE
        if alone or words[1].startswith("docs/") or re.search(r"\b[A-Z]{3,}\b|\.\.\.|…", found):
            continue
        plugins = re.findall(r"=(\w+):[A-Z]", found)
        if " ".join(words) not in seen and all(f"{plugin}.py" in files(page) for plugin in plugins):
            seen.add(" ".join(words))
            yield Command(str(page.relative_to(ROOT)), " ".join(words), "")


def files(page: Path) -> dict[str, str]:
    """The files that a page shows: blocks whose first line names one (``# mine.toml``)."""
    named = {}
    for _, block in FENCE.findall(page.read_text()):
        first = re.match(r"# (\w+\.(?:py|toml|jsonl))\n", block)
        if first:
            named[first[1]] = block
    return named


def table() -> Rows:
    """(page, command): (clock, CPU), as the page has them."""
    rows = {}
    for line in TARGET.read_text().splitlines() if TARGET.exists() else ():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip("|").split("|")]
        if len(cells) == 4 and cells[1].startswith("`"):
            rows[cells[0], cells[1].strip("`").replace("\0", "|")] = (cells[2], cells[3])
    return rows


def write(rows: Rows) -> None:
    """The table, in the order of the pages; commands that no page has any more are left out."""
    lines = []
    for page in pages():
        for command in commands(page):
            clock, cpu = elsewhere(command) or rows.get((command.page, command.text), (MISSING, ""))
            lines.append(f"| {command.page} | `{command.text.replace('|', chr(92) + '|')}` | {clock} | {cpu} |")
    TARGET.write_text(HEAD + "\n".join(dict.fromkeys(lines)) + "\n")


def elsewhere(command: Command) -> tuple[str, str] | None:
    """Who runs it, if not this script; of a whole paper, how long ``docs/papers.py`` took for it."""
    if BENCHMARK.match(command.text):
        return "run by `make benchmarks`", ""
    if (paper := PAPER.fullmatch(command.text)) and (data := ROOT / "docs" / "papers" / f"{paper[1]}.json").exists():
        return str(json.loads(data.read_text())["seconds"]), "with `docs/papers.py`"
    who = ELSEWHERE.get(command.text, "run by a test" if "checkout" in command.tag else None)
    return None if who is None else (who, "")


def known(rows: Rows) -> dict[str, tuple[str, str]]:
    """Times of the commands that need no page, by command."""
    return {text: times for (_, text), times in rows.items() if FREE.match(text) and times[0] != MISSING}


def run(page: Path, limit_s: float, rows: Rows, free: dict[str, tuple[str, str]], missing: bool = False) -> int:
    """Run a page's commands; returns how many failed. ``free``: times of those that need no page, by command; it grows.
    ``missing``: leave out the page's own commands if all have a time."""
    failed, todo = 0, []
    for command in commands(page):
        key = (command.page, command.text)
        if elsewhere(command) is not None:
            continue
        if command.text in free:
            rows[key] = free[command.text]
        elif rows.get(key, ("",))[0] != LONG:
            todo.append(command)
    todo.sort(key=lambda c: "…" in c.text)  # what looks into any run, after those that make one
    if missing and all(rows.get((c.page, c.text), (MISSING,))[0] != MISSING for c in todo if not FREE.match(c.text)):
        todo = [c for c in todo if FREE.match(c.text)]
    scratch = Path(tempfile.mkdtemp(prefix="stretto-docs-"))
    for name, text in files(page).items():
        (scratch / name).write_text(text)
    shutil.copy(ROOT / "src/stretto/recipes/data/additions.jsonl", scratch / "questions.jsonl")
    for folder in ("benchmarks", "examples", "docs"):
        (scratch / folder).symlink_to(ROOT / folder)
    for command in todo:
        text = command.text
        if "…" in text:
            made = sorted((scratch / "runs").glob("*/")) if (scratch / "runs").exists() else []
            text = re.sub(r"runs/\S*…", str(made[-1]) if made else "runs/missing", text)
        print(f"{command.page}: {text}", flush=True)
        times = timed(text, scratch, limit_s)
        if isinstance(times, str):
            failed += 1
            print(f"  {times}", flush=True)
            continue
        rows[command.page, command.text] = times
        if FREE.match(command.text):
            free[command.text] = times
        print(f"  {times[0]} s, {times[1]} s of CPU", flush=True)
        write(rows)
    write(rows)
    shutil.rmtree(scratch)
    return failed


def timed(text: str, scratch: Path, limit_s: float) -> tuple[str, str] | str:
    """Run one command there: seconds on the clock and of the processors, or what went wrong."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                   "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}.", "OMP_NUM_THREADS": "1", "COLUMNS": "120"}  # fmt: skip
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    shell = subprocess.Popen(["bash", "-c", text], cwd=scratch, env=environment, start_new_session=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        code = shell.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)  # with all that it has started
        shell.wait()
        return f"took longer than {limit_s:g} s"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if code:
        return f"failed with exit code {code}"
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"{time.monotonic() - start:.0f}", f"{cpu:.0f}"


def main() -> int:
    """Run what the arguments say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", help="README.md, docs/tutorial.md, ... (none: all)")
    parser.add_argument("--limit-s", type=float, default=1800.0)
    parser.add_argument("--missing", action="store_true", help="only what has no time yet, and what that needs")
    parser.add_argument("--write", action="store_true", help="only write the table anew, with the times that it has")
    arguments = parser.parse_args()
    rows = table()
    if arguments.write:
        write(rows)
        return 0
    chosen = [ROOT / page for page in arguments.pages] or pages()
    free = known(rows) if arguments.missing else {}
    return int(sum(run(page, arguments.limit_s, rows, free, arguments.missing) for page in chosen) > 0)


if __name__ == "__main__":
    sys.exit(main())
