"""docs/metrics.md has every metric that is written, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import product
from pathlib import Path

from stretto.config.load import apply_overrides, validate
from stretto.launch import launch
from stretto.observe.metrics import read_metrics

ROOT = Path(__file__).parent.parent
ROOMS = ("observe", "learner", "objectives", "runtime")
NO_METRIC = {"tokens/s"}
PLAIN = {"step", "t", "version", "completed", "loss", "lr", "ess", "entropy", "grad_norm", "truncated", "in_flight"}
"""Names without a slash."""


@cache
def page() -> dict[str, re.Pattern[str]]:
    """Each name of the page's first columns, with braces spelled out, and what it matches."""
    found = {}
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        for text in re.findall(r"`([^`]+)`", line.split(" | ")[0]) if line.startswith("| `") else []:
            parts = [part.strip("{}").split(",") for part in re.split(r"(\{[^}]*\})", text)]
            for name in map("".join, product(*parts)):
                found[name] = re.compile("".join(".+" if p.startswith("<") else re.escape(p)
                                                 for p in re.split(r"(<[^>]*>)", name)))  # fmt: skip
    return found


def written() -> set[str]:
    """Literals of the code that look like a metric; ``*`` where they are filled in."""
    names = set()
    for path in (path for room in ROOMS for path in (ROOT / "src/stretto" / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "*" for p in parts)
            if re.fullmatch(r"[a-z_]+(/[a-z_0-9*]+)+", text) and text not in NO_METRIC:
                names.add(text)
    return names


def test_every_metric_in_the_code_is_on_the_page_and_no_other() -> None:
    code = {name: re.compile(re.escape(name).replace(r"\*", ".+")) for name in written()}
    # of a mean, std and max only the beginning is in the code; "log_ratio/q" is one of "log_ratio/q*"
    missing = [c for c, like in code.items() if not any(
        like.match(name) or told.fullmatch(c) for name, told in page().items())]  # fmt: skip
    assert not missing, f"not in docs/metrics.md: {missing}"
    moments = {f"{name}/{part}" for name in (*code, "is_ratio") for part in ("mean", "std", "max")}
    unknown = [name for name in page() if name not in PLAIN | moments and not any(
        like.fullmatch(re.sub("<[^>]*>", "x", name)) for like in code.values())]  # fmt: skip
    assert not unknown, f"nothing writes {unknown}"


def test_every_metric_of_a_run_is_on_the_page(tmp_path: Path) -> None:
    config = validate(apply_overrides({}, [
        f"out={tmp_path / 'run'}", "max_steps=3", "prompts_per_step=2", "group_size=2", "logging.report=false",
        "logging.console=off", "eval.tasks=2"]))  # fmt: skip
    launch(config, "simulate")
    names = {name for row in read_metrics(tmp_path / "run") for name in row}
    assert len(names) > 40
    assert not [name for name in names if not any(told.fullmatch(name) for told in page().values())]
