"""``report.html``: one self-contained page about a run. No network, works from file://, light and dark, on a phone."""

from __future__ import annotations

import html
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import orjson

from stretto.observe.report_data import collect
from stretto.observe.stream import MALFORMED, stream_events
from stretto.observe.tally import Event


def write_report(run_dir: Path | str) -> Path:
    """Write ``report.html`` into the run directory from ``events.jsonl``, ``rollouts/`` and ``config.toml``.

    Works for an unfinished run, one without steps and one without rollouts.

    Raises:
        DataError: there is no event log.
    """
    run = Path(run_dir)
    data = collect(run, _readable(run))
    config = run / "config.toml"
    page = _asset("report.html")
    parts = {
        "TITLE": html.escape(run.resolve().name),
        "STYLE": _asset("report.css"),
        "SCRIPT": "\n".join(map(_asset, ("report_charts.js", "report_timeline.js", "report.js"))),
        "CONFIG": html.escape(config.read_text(errors="replace")) if config.is_file() else "",
        # "<" occurs inside strings only; as it is, "</script" or "<!--" would end or change the script element
        "DATA": orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS).decode().replace("<", "\\u003c"),
    }
    # one pass from left to right, so that a text can't be taken for another place to fill
    pieces = page.split("%%")
    filled = [parts[piece] if number % 2 else piece for number, piece in enumerate(pieces)]
    path = run / "report.html"
    scratch = run / "report.html.part"
    scratch.write_text("".join(filled), encoding="utf-8")
    scratch.replace(path)
    return path


def _readable(run: Path) -> Iterator[Event]:
    return (event for event in stream_events(run) if event["e"] != MALFORMED)


def _asset(name: str) -> str:
    return files("stretto.observe").joinpath(name).read_text(encoding="utf-8")
