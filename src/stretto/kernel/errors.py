"""Errors that a user meets. Each message says what went wrong, where, and what to do about it."""

from __future__ import annotations

import contextlib
import difflib
import re
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_MOST_CHARACTERS = 20_000
_PLACE = re.compile(r".*? at [^\s:]+:\d+ in \S+?(?= \(traceback|: |$)", re.DOTALL)


class StrettoError(Exception):
    """Base of every error that Stretto raises on purpose; the command line prints it without a traceback."""


class ConfigError(StrettoError):
    """A setting is unknown, malformed, or can't be combined with another one."""


class DataError(StrettoError):
    """A file, data set, reward or model directory isn't what it must be."""


class NonFiniteError(DataError):
    """A policy token carries a NaN or an infinity where a number is needed."""


class CheckpointError(StrettoError):
    """A checkpoint is missing, incomplete, corrupt, or of a newer format."""


class WorkerError(StrettoError):
    """A worker process died or broke its protocol; carries the tail of what it printed."""


class DeadlineError(StrettoError):
    """A wait ran past its deadline; names the owner and what it waited for."""


class DeadlockError(StrettoError):
    """Nothing is scheduled any more although work remains; lists who waits for what."""


class InvariantError(StrettoError):
    """An invariant of the loop broke: a defect in Stretto (or in a plugged-in rule), never a user's mistake."""


class WeightsError(StrettoError):
    """Published weights failed verification: checksum, shape, or non-finite values."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names)}"


def origin(error: BaseException) -> str:
    """Where a user's own code raised ``error``: ``module.py:LINE in function``, its last line outside libraries; empty
    if no such code was running."""
    chain = list(_chain(error))
    if kept := next(filter(None, (getattr(e, "raised_at", "") for e in chain)), ""):  # in another process
        return str(kept)
    for raised in chain:
        frames = [f for f in traceback.extract_tb(raised.__traceback__) if is_users(f.filename)]
        if frames:
            return f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}"
    return ""


def in_plugin(error: BaseException) -> bool:
    """Did code of the user's raise ``error`` while it was called from here? Who only calls us is no such code."""
    for raised in _chain(error):
        if getattr(raised, "raised_at", ""):
            return True
        ours = False
        for frame in traceback.extract_tb(raised.__traceback__):
            ours = ours or frame.filename.startswith(_OURS)
            if ours and is_users(frame.filename):
                return True
    return False


def cause(reason: str) -> str:
    """``reason`` without what differs from one time to the next: what was raised and where, if it says so.

    >>> cause("KeyError at task.py:5 in score: 'a'")
    'KeyError at task.py:5 in score'
    """
    placed = _PLACE.match(reason)
    return placed[0] if placed else reason


def trace(error: BaseException) -> str:
    """The traceback of ``error``, from the process in which it was raised."""
    kept = next((str(e.trace_text) for e in _chain(error) if hasattr(e, "trace_text")), None)
    return "".join(traceback.format_exception(error))[-_MOST_CHARACTERS:] if kept is None else kept


def keep_trace(error: BaseException) -> None:
    """Let ``error`` carry its traceback, before it is sent to another process."""
    with contextlib.suppress(Exception):
        error.trace_text, error.raised_at = trace(error), origin(error)  # type: ignore[attr-defined]


def _chain(error: BaseException) -> Iterable[BaseException]:
    seen: BaseException | None = error
    for _ in range(20):
        if seen is None:
            return
        yield seen
        seen = seen.__cause__ or seen.__context__


def is_users(filename: str) -> bool:
    """Is this a file of the user's own, neither ours nor a library's?"""
    return not filename.startswith(("<frozen", _OURS, *_LIBRARIES))
