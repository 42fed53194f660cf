"""A first import of a user's modules in a process that can be killed: this one lives on whatever they do."""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import re
import signal
import socket
import sys
from collections.abc import Sequence

from stretto.kernel.child import die_with_parent, leave_signals_to_parent, receive, send
from stretto.kernel.errors import ConfigError, StrettoError
from stretto.kernel.supervised import Child

DEADLINE_S = 60.0
"""For one import."""
_START_S = 60.0
_DUMP_S = 5.0
_LINE = re.compile(r'File "(.+)", line (\d+) in <module>')
_passed: set[tuple[str, ...]] = set()

Wanted = tuple[str, str, str]
"""(setting, ``module:name``, what looks at it: ``module:function`` called with the path, or nothing)."""


def probe_imports(wanted: Sequence[Wanted], deadline_s: float = DEADLINE_S) -> None:
    """Let another process import these. ``ConfigError`` says what one raised, that it ended its process, or that it
    passed the deadline, and the line. What passed, or is imported here already, is not tried again."""
    new = [w for w in wanted if (w[1], w[2], *sys.path) not in _passed and (w[2] or _module(w[1]) not in sys.modules)]
    if not new:
        return
    _try(new, deadline_s)
    _passed.update((path, look, *sys.path) for _, path, look in new)


def _module(path: str) -> str:
    return path.partition(":")[0]


def _try(wanted: Sequence[Wanted], deadline_s: float) -> None:
    child = Child(_command)
    at = 0
    try:
        first = pickle.dumps(([entry for entry in sys.path if entry], list(wanted)))
        child.ask(first, _START_S)
        for at in range(len(wanted)):
            ok, value = child.ask(b"", deadline_s)
            if not ok:
                setting, path, _ = wanted[at]
                raise value if isinstance(value, StrettoError) else ConfigError(f"{setting} = {path!r}: {value}")
    except TimeoutError:
        child.signal(signal.SIGABRT, _DUMP_S)  # it says where it is
        child.kill()
        where = _LINE.search(child.said)
        place = f" (at {where[1]}:{where[2]})" if where else ""
        said = child.said.partition("Fatal Python error")[0].strip()
        raise ConfigError(
            f"{_named(wanted[at])}: importing its module takes longer than {deadline_s:g} s{place}; it must not wait "
            "or compute at import" + (f"; it last printed:\n{said}" if said else "")
        ) from None
    except EOFError:
        status = child.kill()
        raise ConfigError(
            f"{_named(wanted[at])}: importing its module ended the process (exit status {status}){child.obituary}"
        ) from None
    finally:
        child.kill()


def _named(wanted: Wanted) -> str:
    return f"{wanted[0]} = {wanted[1]!r}"


# the child's side


def _command(fd: int) -> list[str]:
    return [sys.executable, "-X", "faulthandler", "-c", "from stretto.kernel.probe import main; main()", str(fd),
            str(os.getpid())]  # fmt: skip


def main() -> None:
    """Entry point: ``python -c ... FD PARENT``. One answer for each module that is wanted."""
    fd, parent = int(sys.argv[-2]), int(sys.argv[-1])
    die_with_parent(parent)
    leave_signals_to_parent()
    connection = socket.socket(fileno=fd)
    first = receive(connection)
    if first is None:
        return
    paths, wanted = pickle.loads(first)
    sys.path += [entry for entry in paths if entry not in sys.path]
    answer: tuple[bool, StrettoError | str | None] = (True, None)
    leave, mine = os._exit, os.getpid()

    def told(status: int) -> None:
        frame = sys._getframe(1)
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if os.getpid() == mine:  # not a fork of it
            with contextlib.suppress(OSError):
                send(connection, pickle.dumps((False, f"importing its module calls os._exit({status}) ({place})")))
        leave(status)

    os._exit = told  # type: ignore[assignment]
    from stretto.kernel.components import load_object, said_where

    send(connection, pickle.dumps("ready"))
    for setting, path, look in wanted:
        if receive(connection) is None:
            break
        try:
            if look:
                module, _, function = look.partition(":")
                getattr(importlib.import_module(module), function)(path)
            else:
                load_object(path, setting)
        except StrettoError as error:
            answer = (False, error)
        except BaseException as error:
            answer = (False, f"can't import {_module(path)!r}: {said_where(error)}")
        send(connection, pickle.dumps(answer))
    leave(0)
