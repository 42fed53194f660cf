"""Why a completion ends, and what becomes of running requests when weights change."""

from __future__ import annotations

from enum import StrEnum


class Mode(StrEnum):
    """A word that messages quote as the configuration spells it."""

    def __repr__(self) -> str:
        return repr(self.value)


class Finish(Mode):
    """Why a completion ends."""

    STOP = "stop"
    """A token that ends a text; it belongs to the completion."""
    LENGTH = "length"
    """No room for more."""
    ABORTED = "aborted"
    """It goes on as a new request with what it has."""


class InFlight(Mode):
    """What becomes of running requests when an engine swaps weights (``control.in_flight``)."""

    KEEP = "keep"
    """They go on with the cache that they have."""
    REPREFILL = "reprefill"
    """Their cache is computed anew."""
    DRAIN = "drain"
    """They finish first, new ones wait."""
    ABORT = "abort"
    """They come back, and go on as new requests."""
    PIN = "pin"
    """They stay on their version."""
