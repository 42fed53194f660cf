"""A child process's own side: it ends with its parent, leaves signals to it, reads framed messages and answers calls.
Imports next to nothing, so that a child is there in milliseconds."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
import struct
import sys

from stretto.kernel.errors import keep_trace

HEADER = struct.Struct("<Q")
"""Length of the message that follows."""
_PR_SET_PDEATHSIG = 1
_FOR_THE_PARENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends, even by kill -9 (Linux); leave if it is gone already. Elsewhere
    the end of the socket to the parent tells."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leave_signals_to_parent() -> None:
    """A signal that reaches the whole family (a terminal's, a batch system's) must not end this process before the
    parent has saved. A handler that does nothing, as what is ignored stays so in programs that are started from here.
    """
    for number in _FOR_THE_PARENT:
        signal.signal(number, lambda number, frame: None)


def receive(connection: socket.socket) -> bytes | None:
    """One message; None at the end."""
    header = _read(connection, HEADER.size)
    return None if header is None else _read(connection, HEADER.unpack(header)[0])


def send(connection: socket.socket, payload: bytes) -> None:
    """One message."""
    connection.sendall(HEADER.pack(len(payload)) + payload)


def outcome(message: bytes) -> tuple[bool, object]:
    """(did it return, what it returned or raised) of a pickled (function, arguments)."""
    try:
        function, args = pickle.loads(message)
        return True, function(*args)
    except Exception as error:
        keep_trace(error)
        return False, error
    except BaseException as error:  # sys.exit and its like: no reason to lose the process, or the parent
        odd = RuntimeError(f"{type(error).__name__}: {_text(error)}")
        odd.__cause__ = error
        keep_trace(odd)
        return False, odd
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left armed must not hit the next call


def answer(connection: socket.socket, ok: bool, value: object) -> None:
    """Send an outcome. What can't be pickled is described instead."""
    try:
        payload = pickle.dumps((ok, value))
        if not ok:
            # What can't be rebuilt, has no text, or means something else in a coroutine must not reach the parent.
            str(pickle.loads(payload)[1]).encode()
            if isinstance(value, (StopIteration, StopAsyncIteration)):
                raise TypeError
    except Exception:
        odd = RuntimeError(f"{type(value).__name__}: {_text(value):.2000}")
        if isinstance(value, BaseException):
            odd.__dict__.update({k: v for k, v in vars(value).items() if k in ("trace_text", "raised_at")})
        payload = pickle.dumps((False, odd))
    send(connection, payload)


def _text(value: object) -> str:
    try:
        return str(value).encode(errors="backslashreplace").decode()  # half a surrogate pair can't be logged
    except Exception as error:  # a user's exception may have a broken __str__
        return f"(its text can't be shown: {type(error).__name__})"


def _read(connection: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            return None  # the other end is closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
