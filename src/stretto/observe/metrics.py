"""``metrics.jsonl``: one row per learner step and one per evaluation, a function of the event log alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from stretto.kernel.jsonl import read_jsonl
from stretto.kernel.logfile import Event, cut_tail
from stretto.observe.interval import ROWS
from stretto.observe.summary import Figures
from stretto.observe.tally import Row
from stretto.observe.trackers import Tracker, finite


class MetricsWriter:
    """Listener of the event log: writes a row at each StepEnd and Eval, and hands it to trackers and ``on_row``.

    To continue a run, give ``offset`` (the writer's ``offset`` at the checkpoint; later rows move aside) and
    ``figures`` that have heard the events that stay: cumulative counts go on from them.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        trackers: Sequence[Tracker] = (),
        offset: int | None = None,
        figures: Figures | None = None,
    ) -> None:
        path = Path(run_dir) / "metrics.jsonl"
        self.figures = figures or Figures()
        self.handlers: dict[str, Callable[[Event], object]] = {
            name: self if name in ROWS else handler for name, handler in self.figures.handlers.items()
        }
        """What takes in the events of each name that matters."""
        self.on_row: list[Callable[[Row], None]] = []
        self.offset = 0
        """bytes written so far; a checkpoint stores it"""
        self._trackers = tuple(trackers)
        if offset is not None:
            cut_tail(path, offset)
            self.offset = offset
        self._file = open(path, "wb" if offset is None else "ab")  # noqa: SIM115

    def __call__(self, event: Event) -> None:
        """Take one event; a few microseconds, except where a row is due."""
        row = self.figures(event)
        if row is None:
            return
        line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY)
        self._file.write(line)
        self._file.flush()
        self.offset += len(line)
        values = finite(row)
        for tracker in self._trackers:
            tracker.scalars(row["step"], row["t"], values)
        for listener in self.on_row:
            listener(row)

    def close(self) -> None:
        """Close the file and the trackers."""
        self._file.close()
        for tracker in self._trackers:
            tracker.close()


def read_metrics(run_dir: Path | str) -> list[Row]:
    """Rows of ``metrics.jsonl``; a torn last line is dropped.

    Raises:
        DataError: a line isn't a JSON object (names the file and the line).
    """
    return [row for _, row in read_jsonl(Path(run_dir) / "metrics.jsonl")]
