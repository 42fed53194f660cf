"""The event log: what happened, one JSON object per line, in the order in which the loop learnt it.

It lies in ``events.jsonl.gz`` (``stretto log RUN`` or ``zcat`` prints it), or with ``logging.events = "plain"`` in
``events.jsonl``; ``stretto.kernel.logfile`` writes and reads both. Metrics, the report, the checker and the control
view are computed from this log alone. In virtual time a seed replays it byte for byte, so nothing in it may depend on
the wall clock, on process ids or on paths.

Trajectories are numbered 0, 1, ... in the order in which they are submitted, in the whole run; to which group one
belongs is said in its Submitted. Those of evaluations have no events of their own.

Every event has ``e`` (its name) and ``t`` (seconds on the run's clock); ``stretto.kernel.event_types`` has their names
and further fields, ``docs/events.md`` as a table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from stretto.kernel.event_types import TYPES
from stretto.kernel.logfile import Event, LogFile, cut_tail, read_blocks, stream_events

NAMES = tuple(TYPES)
"""Of all events that there are."""
_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
_LINES = 64
"""Lines held back before they are hashed and handed to the file: few enough to stay in the processor's cache (at 4096
an event took three times as long)."""
_FLUSH_STEP = 16 << 10
"""A step's end makes readable what is at least so long: smaller pieces compress badly, and a clock that jumps has no
second to wait for."""
_dumps = orjson.dumps
Listener = Callable[[Event], Any]


def _heard(listeners: Iterable[Listener], name: str) -> tuple[Listener, ...]:
    """Who hears events of this name."""
    handlers = (f.handlers.get(name) if hasattr(f, "handlers") else f for f in listeners)
    return tuple(f for f in handlers if f is not None)


def version_runs(versions: np.ndarray[Any, Any]) -> list[list[int]]:
    """Run-length form [[version, tokens], ...] of per-token versions (which never decrease)."""
    n = len(versions)
    if not n:
        return []
    first: int = versions.item(0)
    if versions.item(-1) == first:
        return [[first, n]]
    cuts = np.flatnonzero(np.diff(versions)) + 1
    starts = np.concatenate([[0], cuts])
    lengths = np.diff(np.concatenate([starts, [len(versions)]]))
    return [[int(versions[s]), int(n)] for s, n in zip(starts, lengths, strict=True)]


class EventLog:
    """Appends events to a file and hands each to its listeners: those that decide (control view) at once, those that
    only record (metrics, live view) ``later``, so that the next batch needn't wait for them.

    Lines are buffered; ``flush`` makes them readable (on the wall clock within a second), ``step_ended`` those that are
    worth it. ``seal`` says where the file can be cut (``offset``) to go on from here.
    """

    def __init__(
        self,
        path: Path | None,
        now: Callable[[], float],
        offset: int | None = None,
        start_s: float = 0.0,
        later: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """``now`` is the loop's clock; the run's clock starts at ``start_s`` now. ``offset``: continue a log that is
        cut there (resume); the cut-off tail is kept beside it. ``later`` calls a function soon (``loop.call_soon``);
        None: recorders hear at once, too."""
        self._now, self._later = now, later
        self._origin = now() - start_s
        self._read: float | None = None  # the loop's clock when it was last read, and what that is on the run's clock
        self._time = start_s
        self._hash = hashlib.sha256()
        self._buffer: list[bytes] = []
        self._listeners: list[Listener] = []
        self._recorders: list[Listener] = []
        self._unheard: list[tuple[tuple[Listener, ...], Event]] = []
        self.last: Event = {}
        self._routes: dict[str, tuple[tuple[Listener, ...], tuple[Listener, ...]]] = {}
        self._file: LogFile | None = None
        self.directory = None if path is None else path.parent
        """The run directory."""
        if path is None:
            return
        if offset is not None:
            cut_tail(path, offset)
            for text in read_blocks(path):
                self._hash.update(text)
        self._file = LogFile(path, append=offset is not None)

    def emit(self, name: str, **fields: Any) -> float:
        """Log one event now; returns its ``t``."""
        t = self.now()
        self.write({"e": name, "t": t, **fields})
        return t

    def write(self, event: Event) -> None:
        """Log an event that has its name ``e`` and then ``t``, which must be ``now()``. For the events that come with
        each turn: a dict in the source is made in a fifth of the time that keywords take."""
        buffer = self._buffer
        buffer.append(_dumps(event, None, _LINE))
        self.last = event
        routes = self._routes.get(event["e"])
        if routes is None:
            name = event["e"]
            routes = self._routes[name] = _heard(self._listeners, name), _heard(self._recorders, name)
        for listener in routes[0]:
            listener(event)
        if routes[1]:
            if self._later is None:
                for listener in routes[1]:
                    listener(event)
            else:
                if not self._unheard:
                    self._later(self.settle)
                self._unheard.append((routes[1], event))
        if len(buffer) >= _LINES:
            self._drain()

    def hear(self, *, deciding: Iterable[Listener] = (), recording: Iterable[Listener] = ()) -> None:
        """Add listeners. Each hears every event; one that has ``handlers`` (name of an event: function) is asked for
        its handler of a name once, and that alone hears the events of this name."""
        self._routes.clear()
        self._listeners += deciding
        self._recorders += recording

    def settle(self) -> None:
        """Let the recorders hear what they haven't heard yet."""
        unheard, self._unheard = self._unheard, []
        for listeners, event in unheard:
            for listener in listeners:
                listener(event)

    def now(self) -> float:
        """The run's clock, as an event that is logged now carries it."""
        read = self._now()
        if read != self._read:
            self._read = read
            self._time = floor((read - self._origin) * 1e6 + 0.5) / 1e6  # as ``run_time``, without its call
        return self._time

    def run_time(self, loop_time: float) -> float:
        """The run's clock at this time of the loop's clock, rounded as it is logged."""
        return floor((loop_time - self._origin) * 1e6 + 0.5) / 1e6  # what ``round`` does, in a third of its time

    def _drain(self) -> None:
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._hash.update(data)
        if self._file is not None:
            self._file.write(data)

    def flush(self) -> None:
        """Let the recorders hear everything, and others read it."""
        self._settle_and_drain()
        if self._file is not None:
            self._file.flush()

    def step_ended(self) -> None:
        """The same if enough has come together."""
        self._settle_and_drain()
        if self._file is not None:
            self._file.flush(_FLUSH_STEP)

    def seal(self) -> dict[str, int]:
        """Force everything to the disk. Returns the file's name and its length, where it can be cut (``offset``)."""
        self._settle_and_drain()
        if self._file is None:
            return {}
        self._file.sync()
        return {self._file.path.name: self._file.offset}

    def _settle_and_drain(self) -> None:
        self.settle()
        if self._buffer:
            self._drain()

    def close(self) -> str:
        """Flush, close and return the SHA-256 of the whole log."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        return self._hash.hexdigest()


def read_events(path: Path | str, size: int | None = None) -> list[Event]:
    """All events of a run (its directory, or the path of its log), or those in the first ``size`` bytes of the file.
    For logs that fit into memory; ``stream_events`` reads any.

    Raises:
        DataError: there is no log, or a line isn't an event.
    """
    return list(stream_events(path, size, strict=True))
