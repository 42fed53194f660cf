"""A child process's own side: it ends with its parent, leaves signals to it, and reads framed messages. Imports next to
nothing, so that a child is there in milliseconds."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys

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


def _read(connection: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            return None  # the other end is closed
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
