"""The scoring process: reads calls from a socket, runs them, writes back what came out. Imports next to nothing."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from stretto.errors import keep_trace
from stretto.kernel.child import die_with_parent, leave_signals_to_parent, receive, send

START_DEADLINE_S = 60.0
"""For the start of a scoring process, imports included."""


def command(fd: int) -> list[str]:
    """What starts a scoring process of this one; ``fd``: its end of the socket."""
    return [sys.executable, "-c", "from stretto.envs.scoring_child import main; main()", str(fd), str(os.getpid())]


def first_message(imports: Sequence[str]) -> bytes:
    """Where the child finds modules, and what it imports before it is ready: modules, ``module:function``."""
    return pickle.dumps(([entry for entry in sys.path if entry], list(imports)))


def _text(value: Any) -> str:
    try:
        return str(value).encode(errors="backslashreplace").decode()  # half a surrogate pair can't be logged
    except Exception as error:  # a user's exception may have a broken __str__
        return f"(its text can't be shown: {type(error).__name__})"


def _send(connection: socket.socket, ok: bool, value: Any) -> None:
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
            value, ok = function(*args), True
        except Exception as error:
            keep_trace(error)
            value, ok = error, False
        except BaseException as error:  # sys.exit and its like: no reason to lose the process, or the parent
            value, ok = RuntimeError(f"{type(error).__name__}: {_text(error)}"), False
            value.__cause__ = error
            keep_trace(value)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # an alarm left armed must not hit the next call
        _send(connection, ok, value)


def main() -> None:
    """Entry point: ``python -c ... FD PARENT``."""
    fd, parent = int(sys.argv[-2]), int(sys.argv[-1])
    die_with_parent(parent)
    leave_signals_to_parent()
    serve(socket.socket(fileno=fd))


if __name__ == "__main__":
    main()
