"""Rewards that do what none should; imports nothing heavy."""

from __future__ import annotations

import os
import zlib


def odd(text: str, answer: object, info: object) -> float:
    """A third hangs, a third ends its process, the others get their length."""
    fate = zlib.crc32(text.encode()) % 3
    if fate == 0:
        while True:
            pass
    if fate == 1:
        os._exit(3)
    return float(len(text))
