"""One HTML page of a comparison: figures, verdicts, the table, and the command that makes it."""

from __future__ import annotations

import html
import shlex
from collections.abc import Sequence
from pathlib import Path

from stretto.sweep.compare import STALE, Comparison, Point
from stretto.sweep.figures import accuracy_by_lag, collapse_map, curves, off_policy, svg

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;font-size:13px;margin:1rem 0}td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;
text-align:right}td:first-child,th:first-child{text-align:left}code,pre{background:#f4f4f4;padding:.1rem .3rem}
pre{overflow-x:auto;padding:.6rem}.bad{background:#fbe3e0}svg{max-width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#fff}}"""


def write_report(comparison: Comparison, command: Sequence[str], path: Path) -> Path:
    """Write the comparison as one HTML page that loads nothing from elsewhere."""
    arms, lags = len(comparison.arms), len(comparison.lags)
    rows = "".join(_row(comparison, arm.label) for arm in comparison.arms)
    head = "".join(f"<th>lag {lag}</th>" for lag in comparison.lags)
    figures = [
        svg(lambda f: accuracy_by_lag(comparison, f), 11, 4.2),
        svg(lambda f: curves(comparison, f), max(2.6 * lags, 5), 3),
        svg(lambda f: collapse_map(comparison, f), 1.1 * lags + 2.5, 0.32 * arms + 1.2),
        svg(lambda f: off_policy(comparison, f), 11, 3.2),
    ]
    captions = [
        "Held-out accuracy against lag: mean over seeds, 95 % Student intervals.",
        "Learning curves, one panel per lag.",
        "Collapse: accuracy at the end below half of that at the start, or a run that ended with an error.",
        "How far the data is from the policy that learns from it, at the largest lag, as each objective sees it: one "
        "that relates the data to the policy at the start of the step sees no distance at all.",
    ]
    shown = "".join(f"<figure>{f}<figcaption>{c}</figcaption></figure>" for f, c in zip(figures, captions, strict=True))
    seeds = ", ".join(map(str, comparison.seeds))
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Comparison: {html.escape(comparison.source)}</title>"
        f"<style>{_STYLE}</style><h1>{arms} objectives x {lags} lags x {len(comparison.seeds)} seeds</h1>"
        f"<p>Recipe <code>{html.escape(comparison.source)}</code>, seeds {seeds}. Every run of a seed has the same"
        " initial model, prompts and sampling noise; batch k is sampled by version max(0, k - lag), no other, checked"
        f" in each run.</p><pre>{html.escape(shlex.join(command))}</pre>{_verdicts(comparison)}{shown}"
        f"<h2>Accuracy at the end</h2><table><tr><th>objective</th>{head}<th>verdict</th></tr>{rows}</table>"
        f"{_details(comparison)}</html>\n"
    )
    return path


def markdown(comparison: Comparison) -> str:
    """The final accuracies as a Markdown table, for a page of documentation."""
    lines = [
        "| objective | " + " | ".join(f"lag {lag}" for lag in comparison.lags) + " | verdict |",
        "| --- |" + " --- |" * (len(comparison.lags) + 1),
    ]
    verdicts = comparison.verdicts()
    for arm in comparison.arms:
        cells = [_text(comparison.point(arm.label, lag)) for lag in comparison.lags]
        lines.append(f"| `{arm.label}` | " + " | ".join(cells) + f" | {verdicts[arm.label]} |")
    return "\n".join(lines)


def _verdicts(comparison: Comparison) -> str:
    verdicts = comparison.verdicts()
    lines = []
    for word, meaning in (
        ("collapses", f"in most seeds at a lag of {STALE} or more"),
        ("fades", "at the largest lag the 95 % interval of the final accuracy lies below where the runs started"),
        ("undecided", "that interval covers the start: these seeds can't tell"),
        ("holds", "that interval lies at or above the start"),
    ):
        names = ", ".join(f"<code>{html.escape(name)}</code>" for name, verdict in verdicts.items() if verdict == word)
        lines.append(f"<li><b>{word}</b> ({meaning}): {names or 'none'}</li>")
    return f"<h2>What follows</h2><ul>{''.join(lines)}</ul>"


def _text(point: Point) -> str:
    mean, low, high = point.final
    half = "" if low != low else f" ± {(high - low) / 2:.2f}"
    fell = f" ({point.collapsed}/{point.seeds} collapsed)" if point.collapsed else ""
    return f"{mean:.2f}{half}{fell}"


def _row(comparison: Comparison, label: str) -> str:
    cells = []
    for lag in comparison.lags:
        point = comparison.point(label, lag)
        mark = " class=bad" if point.mostly_collapsed else ""
        cells.append(f"<td{mark}>{_text(point)}</td>")
    return f"<tr><td><code>{html.escape(label)}</code></td>{''.join(cells)}<td>{comparison.verdicts()[label]}</td></tr>"


def _details(comparison: Comparison) -> str:
    rows = "".join(
        f"<tr><td><code>{html.escape(p.arm)}</code></td><td>{p.lag}</td><td>{p.start:.3f}</td><td>{p.final[0]:.3f}</td>"
        f"<td>{p.area[0]:.3f}</td><td>{p.collapsed}/{p.seeds}</td><td>{p.fell}/{p.seeds}</td><td>{p.errors}</td>"
        f"<td>{p.wall_s:.1f}</td><td>{p.virtual_s:.1f}</td></tr>"
        for p in comparison.points
    )
    columns = ("objective", "lag", "accuracy at the start", "at the end", "mean over the run", "collapsed",
               "fell on the way", "errors", "wall s per run", "virtual s per run")  # fmt: skip
    head = "".join(f"<th>{column}</th>" for column in columns)
    return f"<h2>All figures</h2><table><tr>{head}</tr>{rows}</table>"
