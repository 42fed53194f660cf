"""Break every method and see its experiment notice: ``python tests/mutants/run.py [PART ...]``, or ``make mutants``.

Each mutant is the package with one small change, run as ``stretto reproduce PART --quick`` in a process of its own,
with two different sets of seeds; it must end with a condition that fails. So must the honest package not. The table is
``docs/mutants.md``, from ``docs/papers/NAME.mutants.json``; exit code 1 if a mutant lives or an honest run fails.
``--missing`` goes on where an earlier run was stopped: it runs only what has no verdict yet.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mutant import SOURCE, Mutant, all_mutants

from stretto.papers import PAPERS

FIRST_SEEDS = (0, 100)
WRITING = threading.Lock()
PAGE = SOURCE.parents[1] / "docs" / "mutants.md"
DATA = PAGE.parent / "papers"
HEAD = """# Mutants

Can the experiments of [the papers](papers.md) fail? Each method is broken on purpose, in one place, and its
experiment runs again, with seeds from {seeds}. Every broken one must end in FAIL, every honest one must not. Written
by `make mutants`, which takes about half an hour on two cores.

| experiment | broken | verdicts |
| --- | --- | --- |
"""


@dataclass(frozen=True)
class Job:
    """One run: of a mutant, or of the honest package (``mutant`` None)."""

    part: str
    mutant: Mutant | None
    first_seed: int

    @property
    def name(self) -> str:
        """What is broken."""
        return "nothing" if self.mutant is None else self.mutant.name


def verdict(job: Job) -> str:
    """What the experiment says; the last line of its output if it said nothing."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        package = Path(directory) / "stretto"
        shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
        if job.mutant is not None:
            job.mutant.apply(package)
        command = [sys.executable, "-m", "stretto.cli", "reproduce", job.part, "--json", "--figures", f"{directory}/f",
                   "--first-seed", str(job.first_seed), "--quick"]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": directory, "NUMBA_CACHE_DIR": f"{directory}/numba"}
        done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=False)
    try:
        record = json.loads(done.stdout.splitlines()[-1])
        failed = [check["name"] for check in record["checks"] if check["verdict"] == "FAIL"]
        return record["verdict"] if not failed else f"FAIL ({len(failed)}: {failed[0]})"
    except (IndexError, ValueError):
        return f"no verdict: {(done.stderr.splitlines() or ['nothing said'])[-1]:.200}"


def jobs_of(mutants: Sequence[Mutant], parts: Sequence[str]) -> list[Job]:
    """Every run: honest ones of all ``parts``, then those of the mutants, with each first seed."""
    honest = [Job(part, None, seed) for part in parts for seed in FIRST_SEEDS]
    return honest + [Job(m.part, m, seed) for m in mutants for seed in FIRST_SEEDS]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="papers or their parts; default: all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--missing", action="store_true", help="only what has no verdict yet")
    parser.add_argument("--page", action="store_true", help="run nothing: write the page anew, from the data")
    options = parser.parse_args()
    if options.page:
        PAGE.write_text(page())
        return
    names = [part for p in PAPERS if p.module for part in (p.parts or (p.name,))]
    wanted = {part for p in PAPERS for part in (p.parts or (p.name,)) if {p.name, part} & set(options.parts)}
    parts = [name for name in names if not options.parts or name in wanted]
    jobs = jobs_of([m for m in all_mutants() if m.part in parts], parts)
    if options.missing:
        jobs = [job for job in jobs if known(job) is None]

    def run(job: Job) -> str:
        began = time.monotonic()
        said = verdict(job)
        with WRITING:
            keep(job, said)
        print(f"{job.part}, broken: {job.name}, seeds from {job.first_seed}: {said}, "
              f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
        return said

    with ThreadPoolExecutor(options.jobs) as threads:
        found = dict(zip(jobs, threads.map(run, jobs), strict=True))
    PAGE.write_text(page())
    wrong = [job for job, said in found.items() if is_wrong(job, said)]
    for job in wrong:
        print(f"{job.part}, broken: {job.name}, seeds from {job.first_seed}: {found[job]}", file=sys.stderr)
    sys.exit(bool(wrong))


def is_wrong(job: Job, said: str) -> bool:
    """Does a mutant live, did an honest run fail, or is there no verdict?"""
    return said.startswith("FAIL") == (job.mutant is None) or said.startswith("no verdict")


def keep(job: Job, said: str) -> None:
    """Write a verdict into the data of its paper, beside those that are there."""
    paper = paper_of(job.part)
    data = read(paper)
    data.setdefault(job.part, {}).setdefault(job.name, {})[str(job.first_seed)] = said
    part = DATA / f".{paper}.mutants.json"
    part.write_text(json.dumps(data, indent=1) + "\n")
    part.replace(DATA / f"{paper}.mutants.json")


def known(job: Job) -> str | None:
    """The verdict of an earlier run."""
    return read(paper_of(job.part)).get(job.part, {}).get(job.name, {}).get(str(job.first_seed))


def paper_of(part: str) -> str:
    """The paper of which ``part`` is an experiment."""
    return next(paper.name for paper in PAPERS if part in (paper.parts or (paper.name,)))


def read(paper: str) -> dict[str, dict[str, dict[str, str]]]:
    """What is known of a paper: part -> what is broken -> first seed -> verdict."""
    path = DATA / f"{paper}.mutants.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def page() -> str:
    """The table, for every part the honest run and then its mutants; what hasn't run says so."""
    lines, mutants = [], all_mutants()
    for paper in (p for p in PAPERS if p.module):
        for part in paper.parts or (paper.name,):
            of_part = read(paper.name).get(part, {})
            for name in ("nothing", *(m.name for m in mutants if m.part == part)):
                verdicts = [of_part.get(name, {}).get(str(seed), "not run yet") for seed in FIRST_SEEDS]
                lines.append(f"| {part} | {name} | {'; '.join(verdicts)} |")
    return HEAD.format(seeds=" and ".join(map(str, FIRST_SEEDS))) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
