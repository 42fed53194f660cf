"""Supervised child processes: each is started in a session of its own, watched, and ended with all that it started.

Whatever runs beside this process is one of these: engines and learners, scoring processes, first imports of a user's
modules, calls side by side. A child gets one end of a socket pair, over which it is told everything, and prints into a
log file or into a pipe whose last bytes are kept for its obituary. Its own side (``kernel.child``) ends it with its
parent. Questions are asked here and waited for (``ask``) or, in an event loop, over streams on ``socket``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stretto.kernel.child import receive, send

Command = Callable[[int], Sequence[str]]
"""What starts a child, given the file descriptor of its end of the socket."""
_SLICE_S = 0.25
_TAIL_BYTES = 4096
_GONE_S = 5.0


class Child:
    """A process that runs ``command``. ``log``: the file to which it appends what it prints; without one, only the end
    of it is kept, and goes on to our standard error with ``echo``. ``pass_fds``: what it inherits besides its socket.
    Raises ``OSError`` if it can't be started."""

    def __init__(
        self,
        command: Command,
        *,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
        echo: bool = False,
    ) -> None:
        self.socket, theirs = socket.socketpair()
        self.log, self._over = log, False
        self._tail = _Tail(echo) if log is None else None
        try:
            with theirs, contextlib.ExitStack() as stack:
                output = self._tail.inlet(stack) if self._tail else stack.enter_context(open(str(log), "ab")).fileno()
                self._process = subprocess.Popen(
                    list(command(theirs.fileno())), stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    pass_fds=(theirs.fileno(), *pass_fds), start_new_session=True,
                    env=None if environment is None else dict(environment),
                )  # fmt: skip
        except BaseException:
            self.socket.close()
            if self._tail is not None:
                self._tail.close()
            raise

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status, negative for a signal; None while it lives."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        """Does it live?"""
        return self.status is None

    @property
    def fate(self) -> str:
        """How it ended, as the middle of a message; while it lives: that it says nothing more."""
        status = self.status
        if status is None:
            return "closed its connection"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited ({status})"

    @property
    def said(self) -> str:
        """The end of what it printed. Without a log it is whole once the child was killed."""
        data = b""
        if self._tail is not None:
            data = bytes(self._tail.last)
        elif self.log is not None:
            with contextlib.suppress(OSError), open(self.log, "rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                data = file.read()
        return data.decode(errors="replace").strip()

    @property
    def obituary(self) -> str:
        """The end of a message about its death."""
        said = self.said
        return f"; it last printed:\n{said}" if said else "; it printed nothing"

    def ask(self, payload: bytes, deadline_s: float) -> Any:
        """Send this and wait for the pickled answer. ``TimeoutError`` past ``deadline_s`` of the wall clock, of which
        pauses of this process (Ctrl-Z) are no part; ``EOFError`` if it is gone."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        try:
            send(self.socket, payload)
            left_s = deadline_s
            while not poll.poll(1000 * max(0.0, min(_SLICE_S, left_s))):
                left_s -= _SLICE_S
                if left_s <= 0:
                    raise TimeoutError
            answer = receive(self.socket)
        except ConnectionError:
            answer = None
        if answer is None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its status is known when it is really gone
                self._process.wait(_GONE_S)
            raise EOFError
        return pickle.loads(answer)

    def signal(self, number: signal.Signals, wait_s: float) -> None:
        """Send it a signal and wait for its end, at most so long."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self._process.send_signal(number)
            self._process.wait(wait_s)

    def strike(self) -> None:
        """SIGKILL to it and to what it started (but for what began a session of its own), without waiting."""
        if not self._over:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def kill(self) -> int:
        """``strike``, and wait until it is gone; its exit status. A second time does nothing."""
        if not self._over:
            self.strike()
            self._process.wait()
            self._over = True
            self.socket.close()  # unless a stream's transport has
            if self._tail is not None:
                self._tail.close()
        return self._process.returncode

    async def exited(self, deadline_s: float | None = None) -> bool:
        """Wait until it is gone, at most so long. Is it?"""
        if self.alive:
            loop = asyncio.get_running_loop()
            gone = asyncio.Event()
            fd = os.pidfd_open(self.pid)
            loop.add_reader(fd, gone.set)
            try:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(gone.wait(), deadline_s)
            finally:
                loop.remove_reader(fd)
                os.close(fd)
        return not self.alive

    async def killed(self) -> int:
        """``kill``, while the event loop goes on."""
        self.strike()
        await self.exited()
        return self.kill()


class _Tail:
    """Reads a pipe to its end, or until it is closed; ``last`` bytes are kept. A descendant of the child that began a
    session of its own may hold the pipe open for ever: closing waits for nobody."""

    def __init__(self, echo: bool) -> None:
        self.last = bytearray()
        self._echo = echo
        self._outlet, self._inlet = os.pipe()
        self._wake, self._sleep = os.pipe()
        self._thread = threading.Thread(target=self._read, daemon=True, name="child's output")

    def inlet(self, stack: contextlib.ExitStack) -> int:
        """The end to print to; ours is closed with ``stack``, and reading begins."""
        stack.callback(os.close, self._inlet)
        stack.callback(self._thread.start)
        return self._inlet

    def _read(self) -> None:
        os.set_blocking(self._outlet, False)
        poll = select.poll()
        poll.register(self._outlet, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        closing = False
        while not closing:
            closing = any(fd == self._wake for fd, _ in poll.poll())
            with contextlib.suppress(BlockingIOError):
                while part := os.read(self._outlet, 1 << 16):
                    self.last += part
                    del self.last[:-_TAIL_BYTES]
                    if self._echo:
                        os.write(2, part)
                return  # its end

    def close(self) -> None:
        """Read what is there, and no more."""
        if self._sleep >= 0:
            os.close(self._sleep)
            if self._thread.ident is not None:
                self._thread.join()
            os.close(self._outlet)
            os.close(self._wake)
            self._sleep = -1
