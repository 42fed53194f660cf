"""Errors that a user meets. Each message says what went wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class StrettoError(Exception):
    """Base of every error that Stretto raises on purpose; the command line prints it without a traceback."""


class ConfigError(StrettoError):
    """A setting is unknown, malformed, or can't be combined with another one."""


class DataError(StrettoError):
    """A file, data set, reward or model directory isn't what it must be."""


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


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}known: {', '.join(names)}"
