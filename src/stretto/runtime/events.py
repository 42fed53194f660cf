"""``events.jsonl``: what happened, one JSON object per line, in the order in which the loop learnt it.

Metrics, the report, the checker and the control view are computed from this log alone. In virtual time a seed
replays it byte for byte, so nothing in it may depend on the wall clock, on process ids or on paths.

Every event has ``e`` (its name) and ``t`` (seconds on the run's clock). Names and further fields:

=============  ===================================================================================================
RunStart       format, mode (train | rehearse | simulate), seed, lag_bound, depth, prompts_per_step, group_size,
               max_steps, engines, slots, in_flight, version, step
Resumed        version, step, max_steps: the log goes on from a checkpoint; all workers are new
Restarted      group, traj [open ids], engine, version: an unfinished group goes on after Resumed;
               from its saved tokens (version as before) or from scratch (version = now)
WorkerUp       worker
WorkerDown     worker, reason
Submitted      group, task (position in the data), traj [ids], engine, version (dispatch version), replaces?
TurnDone       traj, start, tokens, versions [[v, n], ...]: a turn that another one follows
EnvDone        traj, start, what: time outside the engine (tool, scoring)
TrajDone       traj, group, start, tokens (policy), length (all), versions [[v, n], ...], turns,
               reward (null: absent), finish, terminated, truncated
TrajEnd        traj [ids], ending (rejected | filtered | failed | cancelled), reason, tokens (policy, lost),
               group_over? (true: the whole group ends with this, then also group)
GroupReady     group, version (published now), traj [valid ids], tokens
StepStart      step, version, groups, traj [ids], tokens, staleness {total, generation, waiting, max}
StepEnd        step, version (after), skipped, metrics {name: number}; its trajectories are trained unless skipped
RoleChanged    worker, active: the router may (not) send it work
Published      version, checksum, bytes, start
Loaded         worker, version, mode, start (of the pause)
Released       version: no engine holds it any more
Busy           worker, start, end, tokens, prefill, rows (mean): the worker computed from start to end
Waiting        owner, what, since: a wait passed ``deadlines.warn_s``
Fault          where, what: something failed and was dealt with
Eval           version, accuracy, reward, n, start, distance? ({engine: of its weights to its first ones})
Checkpoint     step, version
RunEnd         reason, ledger {submitted, trained, rejected, filtered, failed, cancelled, open}
=============  ===================================================================================================
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson

FORMAT = 1
_LINE = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
Event = dict[str, Any]


def version_runs(versions: np.ndarray[Any, Any]) -> list[list[int]]:
    """Run-length form [[version, tokens], ...] of per-token versions (which never decrease)."""
    n = len(versions)
    if not n:
        return []
    first = int(versions[0])
    if versions[-1] == first:
        return [[first, n]]
    cuts = np.flatnonzero(np.diff(versions)) + 1
    starts = np.concatenate([[0], cuts])
    lengths = np.diff(np.concatenate([starts, [len(versions)]]))
    return [[int(versions[s]), int(n)] for s, n in zip(starts, lengths, strict=True)]


class EventLog:
    """Appends events to a file and hands each to its listeners (control view, metrics, live view).

    Lines are buffered and flushed by ``flush`` (the loop does so at each step and at the end).
    """

    def __init__(
        self, path: Path | None, now: Callable[[], float], offset: int | None = None, start_s: float = 0.0
    ) -> None:
        """``now`` is the loop's clock; the run's clock starts at ``start_s`` now. ``offset``: continue a log that is
        cut there (resume); the cut-off tail is kept beside it."""
        self._now = now
        self._origin = now() - start_s
        self._hash = hashlib.sha256()
        self._buffer: list[bytes] = []
        self.listeners: list[Callable[[Event], None]] = []
        """Each hears every event, or, if it has a set ``names``, those events alone."""
        self.last: Event = {}
        self._routes: dict[str, tuple[Callable[[Event], None], ...]] = {}
        self._routed = 0
        self.count = 0
        self.offset = 0
        self._file = None
        if path is None:
            return
        if offset is not None:
            kept = cut_tail(path, offset)
            self._hash.update(kept)
            self.offset = len(kept)
            self.count = kept.count(b"\n")
        self._file = open(path, "ab" if offset is not None else "wb")  # noqa: SIM115

    def emit(self, name: str, **fields: Any) -> None:
        """Log one event now."""
        event: Event = {"e": name, "t": round(self._now() - self._origin, 6), **fields}
        self._buffer.append(orjson.dumps(event, None, _LINE))
        self.count += 1
        self.last = event
        if self._routed != len(self.listeners):
            self._routes.clear()
            self._routed = len(self.listeners)
        hear = self._routes.get(name)
        if hear is None:
            hear = self._routes[name] = self._route(name)
        for listener in hear:
            listener(event)
        if len(self._buffer) >= 4096:
            self.flush()

    def _route(self, name: str) -> tuple[Callable[[Event], None], ...]:
        """Who hears events of this name."""
        return tuple(f for f in self.listeners if (names := getattr(f, "names", None)) is None or name in names)

    def run_time(self, loop_time: float) -> float:
        """The run's clock at this time of the loop's clock, rounded as it is logged."""
        return round(loop_time - self._origin, 6)

    def flush(self, sync: bool = False) -> None:
        """Write what is buffered; ``sync`` forces it to the disk."""
        if self._buffer:
            data = b"".join(self._buffer)
            self._buffer.clear()
            self._hash.update(data)
            self.offset += len(data)
            if self._file is not None:
                self._file.write(data)
        if self._file is not None:
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())

    def close(self) -> str:
        """Flush, close and return the SHA-256 of the whole log."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
        return self._hash.hexdigest()


def cut_tail(path: Path, offset: int) -> bytes:
    """Cut a JSONL file at ``offset`` bytes; what follows is moved to ``<name>.lost-<k>``. Returns what stays."""
    data = path.read_bytes() if path.exists() else b""
    if len(data) > offset:
        k = 0
        while (lost := path.with_name(f"{path.name}.lost-{k}")).exists():
            k += 1
        lost.write_bytes(data[offset:])
        with open(path, "r+b") as file:
            file.truncate(offset)
    return data[:offset]


def read_events(path: Path) -> list[Event]:
    """All events of a log. A torn last line (the process was killed while writing) is dropped."""
    events: list[Event] = []
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines):
        if not line:
            continue
        try:
            events.append(orjson.loads(line))
        except orjson.JSONDecodeError:
            if number >= len(lines) - 1:
                break
            raise
    return events
