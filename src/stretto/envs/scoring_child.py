"""The scoring process: reads calls from a socket, runs them, writes back what came out. Imports next to nothing."""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any

HEADER = struct.Struct("<Q")
START_DEADLINE_S = 60.0
"""For the start of a scoring process, imports included."""
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent ends, even by kill -9 (Linux); leave if it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _read(connection: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            return None  # the parent closed its end or is gone
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def command(fd: int) -> list[str]:
    """What starts a scoring process of this one; ``fd``: its end of the socket."""
    return [sys.executable, "-c", "from stretto.envs.scoring_child import main; main()", str(fd), str(os.getpid())]


def first_message(imports: Sequence[str]) -> bytes:
    """Where the child finds modules, and what it imports before it is ready: modules, ``module:function``."""
    payload = pickle.dumps(([entry for entry in sys.path if entry], list(imports)))
    return HEADER.pack(len(payload)) + payload


def receive(connection: socket.socket) -> bytes | None:
    """One message; None at the end."""
    header = _read(connection, HEADER.size)
    return None if header is None else _read(connection, HEADER.unpack(header)[0])


def _send(connection: socket.socket, ok: bool, value: Any) -> None:
    try:
        payload = pickle.dumps((ok, value))
        if not ok:
            pickle.loads(payload)  # an exception that can't be rebuilt must not reach the parent
    except Exception:
        payload = pickle.dumps((False, RuntimeError(f"{type(value).__name__}: {value!s:.2000}")))
    connection.sendall(HEADER.pack(len(payload)) + payload)


def _import(name: str) -> None:
    if ":" in name:
        from stretto.envs.verifiers import user_function

        user_function(name)
    else:
        importlib.import_module(name)


def serve(connection: socket.socket) -> None:
    """Answer calls until the parent closes the socket. Imports that fail are the answer to the first message, and the
    last one."""
    first = receive(connection)
    if first is None:
        return
    paths, imports = pickle.loads(first)
    sys.path += [entry for entry in paths if entry not in sys.path]
    try:
        for name in imports:
            _import(name)
    except Exception as error:
        _send(connection, False, error)
        return
    _send(connection, True, "ready")
    while (message := receive(connection)) is not None:
        try:
            function, args = pickle.loads(message)
            value = function(*args)
        except Exception as error:
            _send(connection, False, error)
        else:
            _send(connection, True, value)


def main() -> None:
    """Entry point: ``python -c ... FD PARENT``."""
    fd, parent = int(sys.argv[-2]), int(sys.argv[-1])
    die_with_parent(parent)
    serve(socket.socket(fileno=fd))


if __name__ == "__main__":
    main()
