"""The scoring process: reads calls from a socket, runs them, writes back what came out. Imports next to nothing."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
from collections.abc import Sequence

from stretto.kernel.child import answer, die_with_parent, leave_signals_to_parent, outcome, receive

START_DEADLINE_S = 60.0
"""For the start of a scoring process, imports included."""


def command(fd: int) -> list[str]:
    """What starts a scoring process of this one; ``fd``: its end of the socket."""
    return [sys.executable, "-c", "from stretto.envs.scoring_child import main; main()", str(fd), str(os.getpid())]


def first_message(imports: Sequence[str]) -> bytes:
    """Where the child finds modules, and what it imports before it is ready: modules, ``module:function``."""
    return pickle.dumps(([entry for entry in sys.path if entry], list(imports)))


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
        answer(connection, False, error)
        return
    answer(connection, True, "ready")
    while (message := receive(connection)) is not None:
        answer(connection, *outcome(message))


def main() -> None:
    """Entry point: ``python -c ... FD PARENT``."""
    fd, parent = int(sys.argv[-2]), int(sys.argv[-1])
    die_with_parent(parent)
    leave_signals_to_parent()
    serve(socket.socket(fileno=fd))


if __name__ == "__main__":
    main()
