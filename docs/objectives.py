"""Fills the generated parts of ``docs/objectives.md`` from the code: ``python docs/objectives.py``.

They lie between ``<!-- begin NAME -->`` and ``<!-- end -->``; all else on the page is written by hand. A method without
a section gets one at the end. A test compares the file with what this writes, so that the page can't go stale.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # as a script it is there already

from reference import cell, default_of

from stretto.kernel.components import options_of, type_text
from stretto.kernel.errors import DataError
from stretto.objectives import REGISTRY, names
from stretto.objectives.base import Objective
from stretto.objectives.describe import describe
from stretto.objectives.table import example, probe

PAGE = Path(__file__).with_name("objectives.md")
WIDTH = 100
PART = re.compile(r"<!-- begin (\S+) -->\n.*?<!-- end -->", re.DOTALL)

RATIO_AND_GATE = {
    "reinforce": ("none", "none"),
    "rloo": ("none", "none"),
    "spo": ("none", "constant factor where A < 0"),
    "asympo": ("none", "row divided by its own scale"),
    "grpo": ("token", "clip"),
    "dr-grpo": ("token", "clip"),
    "ppo": ("token", "clip"),
    "dual-clip-ppo": ("token", "clip, dual clip"),
    "ppo-ewma": ("two factors: average / behaviour, current / average", "clip about the average, cap"),
    "decoupled-ppo": ("two factors: proximal / behaviour, current / proximal", "drop by the first, clip the second"),
    "a3po": ("two factors, proximal interpolated", "drop by the first, clip the second"),
    "asyncwebrl": ("two factors: proximal / behaviour, current / proximal", "drop by the first, dual clip"),
    "tis": ("token, sequence or geometric", "truncation"),
    "mis": ("token, sequence or geometric", "two-sided mask, veto"),
    "icepop": ("token, sequence or geometric", "two-sided mask by ratio or by KL"),
    "cispo": ("token", "clipped weight, every token kept"),
    "topr": ("token or sequence", "truncation at 1 where A < 0"),
    "sapo": ("token", "smooth: a sigmoid's slope"),
    "m2po": ("token", "second-moment mask over the step"),
    "dppo": ("token", "mask by divergence, cap"),
    "gspo": ("geometric", "clip"),
    "kimi-pmd": ("none", "quadratic pull to the reference"),
    "gmc-grpo": ("trajectory", "group-mass cap"),
    "tic-grpo": ("trajectory", "truncation or mask above 1 + eps"),
    "entr": ("token", "clip, entropy-normalised region"),
    "sat": ("token", "clip that contracts in the stale tail"),
    "sat-gspo": ("geometric", "clip that contracts in the stale tail"),
    "sao": ("token", "two-sided mask"),
    "rac": ("trajectory", "truncation"),
    "copc": ("token", "two-sided mask"),
    "brace": ("token", "clip"),
    "vtrace": ("token", "truncation"),
    "klpo": ("none: log-ratio as a residual", "none"),
}
ESTIMATORS = {
    "asyncwebrl": "group, per step",
    "brace": "BRACE",
    "copc": "weighted residuals",
    "klpo": "reward less KL to the sampler",
    "rac": "group, late correction",
    "sao": "GAE, lambda by length",
    "vtrace": "V-trace",
}
BASELINES = {"group": "group", "leave-one-out": "leave-one-out", "none": "returns", "gae": "GAE"}
NEEDS = {
    "values": "a critic",
    "proximal": "`logp_proximal`",
    "start": "log-probabilities at the start of the step",
    "statistics": "statistics of the whole step",
    "old": "`logp_old`",
    "sampled": "recorded samples",
    "top": "recorded likeliest tokens",
    "late": "late rewards",
    "gate": "log-probabilities before the step, where advantages depend on what is rejected",
}
INPUTS = {"values": "with_critic", "proximal": "with_proximal", "old": "with_old", "sampled": "with_samples",
          "late": "LateRewards()"}  # fmt: skip
INPUTS_OF = {"asyncwebrl": "with_steps", "ppo-ewma": "WithAverage()"}
OPTIONS = {"dr-grpo": "max_length=LENGTH", "entr": "tau=1.0"}


def main() -> None:
    """Write the file."""
    PAGE.write_text(text(PAGE.read_text()))


def text(page: str) -> str:
    """The page with its generated parts as the code has them."""
    present = set(PART.findall(page))
    for name in names():
        if name not in present:
            page = f"{page.rstrip()}\n\n### `{name}`\n\n<!-- begin {name} -->\n<!-- end -->\n"
    return PART.sub(lambda found: f"<!-- begin {found[1]} -->\n\n{part(found[1])}\n<!-- end -->", page)


def part(name: str) -> str:
    """One generated part."""
    known: dict[str, Callable[[], str]] = {"composition": composition, "shared-options": shared_options}
    return known[name]() if name in known else section(name)


def composition() -> str:
    """Which method composes which parts, with its defaults."""
    rows = ["| method | ratio | gate | advantage | aggregation |", "| --- | --- | --- | --- | --- |"]
    for name in sorted(names(), key=lambda n: (list(RATIO_AND_GATE).index(n) if n in RATIO_AND_GATE else 99, n)):
        objective = example(name)
        ratio, gate = RATIO_AND_GATE.get(name, ("see its section", "see its section"))
        advantage = ESTIMATORS.get(name) or BASELINES[objective.baseline]
        if objective.baseline == "group" and not objective.std:
            advantage = advantage.replace("group", "group-centred")
        rows.append(f"| [`{name}`](#{name}) | {ratio} | {gate} | {advantage} | `{objective.aggregation}` |")
    return "\n".join(rows) + "\n"


def shared_options() -> str:
    """The options that every method has."""
    return table(Objective, list(options_of(Objective)))


def table(kind: Any, chosen: list[str]) -> str:
    """One row per option."""
    hints, fields = typing.get_type_hints(kind), options_of(kind)
    symbols: dict[str, list[str]] = {}
    for symbol, targets in kind.aliases.items():
        for target in targets:
            symbols.setdefault(target, []).append(f"`{symbol}`")
    rows = ["| option | type | default | also written |", "| --- | --- | --- | --- |"]
    for name in chosen:
        written = ", ".join(symbols.get(name, []))
        rows.append(f"| `{name}` | {cell(type_text(hints[name]))} | {default_of(fields[name])} | {written} |")
    return "\n".join(rows) + "\n"


def section(name: str) -> str:
    """Formula, source, needs, options, gradient and use of one method."""
    kind, found = typing.cast(Any, REGISTRY.find(name)), describe(name)
    paragraphs = found.text.split("\n\n")
    ends = next(i for i, paragraph in enumerate(paragraphs, 1) if paragraph.endswith("."))
    formula = "\n".join(
        textwrap.fill(" ".join(paragraph.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
        for paragraph in paragraphs[:ends]
    )
    parts = [f"```text\n{formula}\n```\n", *[prose(paragraph) for paragraph in paragraphs[ends:]]]
    parts.append(f"{facts(kind, name, found.needs)}\n")
    options = own_options(kind)
    if options:
        parts.append(table(kind, options))
    ratios = list(dict.fromkeys(row.ratio for row in found.gradient))
    parts.append(f"| gradient at ratio | {' | '.join(f'{r:g}' for r in ratios)} |")
    parts.append("| --- |" + " ---: |" * len(ratios))
    for advantage in (1.0, -1.0):
        numbers = " | ".join(f"{row.multiplier:.4g}" for row in found.gradient if row.advantage == advantage)
        parts.append(f"| {'A > 0' if advantage > 0 else 'A < 0'} | {numbers} |")
    return "\n".join([*parts, f"\n```python\n{use(name, found.needs)}\n```\n"])


def facts(kind: Any, name: str, needs: list[str]) -> str:
    """Source, module, what it reads and needs, whether it corrects."""
    papers = list(dict.fromkeys(re.findall(r"\b\d{4}\.\d{5}\b", inspect.getdoc(kind) or "")))
    file = f"{kind.__module__.rsplit('.', 1)[-1]}.py"
    said = [f"Code: [`{file}`](../src/stretto/objectives/{file})."]
    if papers:
        said.insert(0, f"Paper{'s' * (len(papers) > 1)}: " + ", ".join(
            f"[arXiv {paper}](https://arxiv.org/abs/{paper})" for paper in papers) + ".")  # fmt: skip
    said.append(f"Reads {', '.join(f'`{field}`' for field in reads(name))}.")
    if needs:
        said.append("Needs " + ", ".join(NEEDS[need] for need in needs) + ".")
    if not example(name).corrects:
        said.append("With its defaults it doesn't correct for stale data.")
    return textwrap.fill(" ".join(said), 120, break_long_words=False, break_on_hyphens=False)


def reads(name: str) -> list[str]:
    """The fields of a batch without which the method, with its defaults and its own advantages, refuses to work."""
    objective = example(name)
    batch, logp, _ = probe(1.0, 1.0)
    values = batch.values if "values" in objective.needs else None
    found = []
    for field in dataclasses.fields(batch):
        if field.name == "mask" or getattr(batch, field.name) is None:
            continue
        if field.default is not None:  # never absent
            continue
        try:
            objective(batch.replace(**{field.name: None}), logp, values)
        except DataError:
            found.append(field.name)
    return found


def own_options(kind: Any) -> list[str]:
    """Options that the method adds, or whose default it changes."""
    shared = options_of(Objective)
    return [
        name for name, field in options_of(kind).items() if name not in shared or field.default != shared[name].default
    ]


def use(name: str, needs: list[str]) -> str:
    """The method in the page's loop."""
    options = f", {OPTIONS[name]}" if name in OPTIONS else ""
    inputs = INPUTS_OF.get(name) or next((INPUTS[need] for need in INPUTS if need in needs), None)
    return f'train(get("{name}"{options}){f", {inputs}" if inputs else ""})'


def prose(paragraph: str) -> str:
    """A docstring's paragraph as Markdown: literals stay, symbols that Markdown would take for mark-up are escaped."""
    lines = []
    for line in paragraph.splitlines():
        bullet = "* " if line.startswith("* ") else ""
        pieces = re.split(r"(``.*?``)", line.removeprefix(bullet))
        escaped = [re.sub(r"([*_<>|~])", r"\\\1", re.sub(r"^[-+] ", r"\\\g<0>", piece)) for piece in pieces[::2]]
        literal = [f"`{piece[2:-2]}`" for piece in pieces[1::2]] + [""]
        lines.append(bullet + "".join(a + b for a, b in zip(escaped, literal, strict=True)))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
