"""A first import of a user's reward in a process that can be killed: this one lives on whatever it does."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from typing import IO

from stretto.envs.scoring_child import START_DEADLINE_S, command, first_message, receive
from stretto.errors import ConfigError, StrettoError

_TAIL_BYTES = 2000
_passed: set[tuple[str, ...]] = set()


def try_function(path: str, deadline_s: float = START_DEADLINE_S) -> None:
    """Let a scoring process import the reward ``module:function``. ``ConfigError`` says what it raised, that it ended
    its process, or that it passed the deadline. A path that passed is not tried again."""
    key = (path, *sys.path)
    if key not in _passed:
        _try(path, deadline_s)
        _passed.add(key)


def _try(path: str, deadline_s: float) -> None:
    setting = f"reward = {path!r}"
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile() as printed:
        with theirs:
            child = subprocess.Popen(
                command(theirs.fileno()), stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip
        try:
            ours.settimeout(deadline_s)
            ours.sendall(first_message([path]))
            answer = receive(ours)
            if answer is None:
                child.wait(deadline_s)
        except TimeoutError:
            raise ConfigError(
                f"{setting}: importing its module takes longer than {deadline_s:g} s; it must not wait or compute at "
                f"import{_said(printed)}"
            ) from None
        except ConnectionError:
            answer = None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        if answer is None:
            raise ConfigError(
                f"{setting}: importing its module ended the process (exit status {child.returncode}){_said(printed)}"
            )
        ok, value = pickle.loads(answer)
    if not ok:
        raise value if isinstance(value, StrettoError) else ConfigError(f"{setting}: {type(value).__name__}: {value}")


def _said(printed: IO[bytes]) -> str:
    printed.seek(max(0, printed.seek(0, os.SEEK_END) - _TAIL_BYTES))
    text = printed.read().decode(errors="replace").strip()
    return f"; it last printed:\n{text}" if text else "; it printed nothing"
