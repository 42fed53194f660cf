"""What a user's own code may not do to the process that it runs in: change what belongs to everybody, or end it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM, signal.SIGCHLD)
_Held = tuple[Callable[[], Any], Callable[[Any], object]]
"""How to look at something, how to set it; which type it has is between the two."""


@contextlib.contextmanager
def unchanged(what: str) -> Iterator[None]:
    """Inside, ``what`` is imported. The working directory, handlers of signals, an armed timer, and PyTorch's default
    type and threads are then as they were; a warning says what was put back."""
    before = {name: get() for name, (get, _) in _state().items()}
    try:
        yield
    finally:
        for name, (get, put) in _state().items():
            if name in before and get() != before[name]:
                put(before[name])
                warnings.warn(f"{what}: importing it changed {name}, which belongs to the whole process; it was put "
                              "back. Change it where it is used", stacklevel=2)  # fmt: skip


def _state() -> dict[str, _Held]:
    """What is everybody's: how to look at it, how to set it."""
    found: dict[str, _Held] = {
        "the working directory": (os.getcwd, os.chdir),
        "a timer": (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, lambda armed: _disarm()),
    }
    if threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            found[f"the handler of {number.name}"] = (partial(signal.getsignal, number), partial(_handle, number))
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "set_num_threads"):
        found["PyTorch's default type"] = (torch.get_default_dtype, torch.set_default_dtype)
        found["PyTorch's threads"] = (torch.get_num_threads, torch.set_num_threads)
    return found


def _handle(number: int, handler: Callable[[int, FrameType | None], object] | int | None) -> None:
    signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _disarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)


@contextlib.contextmanager
def no_way_out() -> Iterator[None]:
    """Inside, ``os._exit`` in this process raises instead of ending it without a word (and without what it would have
    saved)."""
    leave, mine = os._exit, os.getpid()

    def refused(status: int) -> None:
        if os.getpid() != mine:  # a fork of it may
            leave(status)
        raise RuntimeError(f"it called os._exit({status}), which would end the whole run")

    os._exit = refused  # type: ignore[assignment]
    try:
        yield
    finally:
        os._exit = leave
