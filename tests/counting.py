"""The work of a piece of code as a number that no clock, load or machine changes: how many functions it calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls(function: Callable[[], Any]) -> int:
    """Calls of Python and C functions, on this thread, while ``function`` runs."""
    found = 0

    def hear(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal found
        found += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(hear)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def instructions(function: Callable[[], Any]) -> int:
    """Python instructions on this thread while ``function`` runs: also what loops without calling anything."""
    found = 0

    def hear(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal found
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        found += event == "opcode"
        return hear

    before = sys.gettrace()
    sys.settrace(hear)
    try:
        function()
    finally:
        sys.settrace(before)
    return found
