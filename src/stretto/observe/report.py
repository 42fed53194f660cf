"""``report.html``: one self-contained page about a run. No network, works from file://, light and dark, on a phone."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import orjson

from stretto.kernel.errors import DataError
from stretto.kernel.logfile import MALFORMED, Event, find_log, stream_events
from stretto.observe.report_data import collect


def write_report(run_dir: Path | str, on_progress: Callable[[str], None] = lambda line: None) -> Path:
    """Write ``report.html`` into the run directory from the event log, ``rollouts/`` and ``config.toml``.

    Works for an unfinished run, one without steps and one without rollouts. Lines of the log that can't be read are
    left out, listed among the faults, and told to ``says``.

    Raises:
        DataError: there is no event log, or too little of it is readable.
    """
    run = Path(run_dir)
    damaged: list[int] = []  # numbers of lines, as of the latest pass
    try:
        data = collect(run, lambda: _readable(run, damaged))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if not damaged:
            raise
        raise DataError(f"{_damage(run, damaged)}; without it the rest makes no sense") from error
    if damaged:
        on_progress(f"{_damage(run, damaged)}; the report leaves it out")
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


def _readable(run: Path, damaged: list[int]) -> Iterator[Event]:
    """The events; a line that isn't one becomes a fault, and its number goes into ``damaged``."""
    t = 0.0
    damaged.clear()
    for number, event in enumerate(stream_events(run), 1):
        if isinstance(event, dict) and event.get("e") not in (None, MALFORMED) and "t" in event:
            t = event["t"]
            yield event
        else:
            damaged.append(number)
            yield {"e": "Fault", "t": t, "where": "the event log", "what": f"line {number} can't be read"}


def _damage(run: Path, damaged: list[int]) -> str:
    more = f" and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return f"{find_log(run)}: line {damaged[0]}{more} can't be read"


def _asset(name: str) -> str:
    return files("stretto.observe").joinpath(name).read_text(encoding="utf-8")
