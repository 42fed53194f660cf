"""A child process that can be killed whatever it does, and for whose answers its parent waits."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from typing import IO, Any

from stretto.kernel.child import receive, send

_SLICE_S = 0.25
_TAIL_BYTES = 4096
_GONE_S = 5.0


class Killable:
    """``command(fd)``: what starts it, given its end of the socket. What it prints is kept for its obituary."""

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self._socket, theirs = socket.socketpair()
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by ``kill``)
        with theirs:
            try:
                self.process = subprocess.Popen(
                    command(theirs.fileno()), stdin=subprocess.DEVNULL, stdout=self._printed, stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),), start_new_session=True,
                )  # fmt: skip
            except BaseException:
                self._socket.close()
                self._printed.close()
                raise
        self.said = ""
        """The tail of what it printed, once it is killed."""

    def ask(self, payload: bytes, deadline_s: float) -> Any:
        """Its pickled answer. ``TimeoutError`` past ``deadline_s`` of the wall clock, of which pauses of this process
        (Ctrl-Z) are no part; ``EOFError`` if it is gone."""
        try:
            send(self._socket, payload)
            left_s = deadline_s
            while not select.select([self._socket], [], [], max(0.0, min(_SLICE_S, left_s)))[0]:
                left_s -= _SLICE_S
                if left_s <= 0:
                    raise TimeoutError
            answer = receive(self._socket)
        except ConnectionError:
            answer = None
        if answer is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its status is known when it is really gone
                self.process.wait(_GONE_S)
            raise EOFError
        return pickle.loads(answer)

    def signal(self, number: signal.Signals, wait_s: float) -> None:
        """Send it a signal and wait for its end, at most so long."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.send_signal(number)
            self.process.wait(wait_s)

    def kill(self) -> int:
        """SIGKILL to it and to what it started; its exit status."""
        if not self._printed.closed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._socket.close()
            self._printed.seek(max(0, self._printed.seek(0, os.SEEK_END) - _TAIL_BYTES))
            self.said = self._printed.read().decode(errors="replace").strip()
            self._printed.close()
        return self.process.returncode

    @property
    def obituary(self) -> str:
        """The end of a message about its death."""
        return f"; it last printed:\n{self.said}" if self.said else "; it printed nothing"
