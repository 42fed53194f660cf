"""The same call for many arguments, side by side in processes that never outlive this one."""

from __future__ import annotations

import os
import pickle
import select
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from stretto.kernel.child import answer, die_with_parent, leave_signals_to_parent, outcome, receive, send
from stretto.kernel.errors import StrettoError, WorkerError
from stretto.kernel.supervised import Child

T = TypeVar("T")


class ProcessMap:
    """``jobs`` processes as a context; with one job everything happens in this process, in turn. However the context is
    left, the processes are gone then, and so they are when this one dies. What they print goes to standard error."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._idle: list[Child] = []
        self._running: dict[int, Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        children = [*self._idle, *self._running.values()]
        for child in children:
            child.strike()
        for child in children:
            child.kill()
        self._idle, self._running = [], {}

    def results(self, function: Callable[..., T], arguments: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """``function(*a)`` for each ``a``, as they come. Raises what it raised, or ``WorkerError`` if its process died.
        Both must pickle, and the function lie in a module, unless there is one job."""
        if self._jobs == 1:
            for each in arguments:
                yield function(*each)
            return
        name = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
        if function.__module__ == "__main__":
            raise StrettoError(f"{name}: another process can't import the main script; move the function to a module")
        waiting = deque(pickle.dumps((function, each)) for each in arguments)
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self._jobs:
                    child = self._idle.pop() if self._idle else _start()
                    self._running[child.socket.fileno()] = child
                    send(child.socket, waiting.popleft())
                for fd in self._ready():
                    yield self._result(fd, name)
        finally:
            for child in self._running.values():  # of calls that nobody waits for any more
                child.kill()
            self._running.clear()

    def _ready(self) -> list[int]:
        poll = select.poll()
        for fd in self._running:
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll()]

    def _result(self, fd: int, name: str) -> Any:
        child = self._running[fd]
        try:
            message = receive(child.socket)
        except ConnectionError:
            message = None
        if message is None:
            child.kill()
            raise WorkerError(f"a process {child.fate} during {name}{child.obituary}")
        ok, value = pickle.loads(message)
        self._idle.append(self._running.pop(fd))
        if ok:
            return value
        if not isinstance(value, StrettoError) and (trace := getattr(value, "trace_text", "")):
            value.add_note(f"In the process that called {name}:\n{trace}")
        raise value


def _start() -> Child:
    child = Child(_command, echo=True)
    try:
        send(child.socket, pickle.dumps([entry for entry in sys.path if entry]))
    except BaseException:
        child.kill()
        raise
    return child


# the child's side


def _command(fd: int) -> list[str]:
    code = "from stretto.kernel.process_map import main; main()"
    return [sys.executable, "-c", code, str(fd), str(os.getpid())]


def main() -> None:
    """Entry point: ``python -c ... FD PARENT``. One thread of torch; interrupts are the parent's business."""
    fd, parent = int(sys.argv[-2]), int(sys.argv[-1])
    die_with_parent(parent)
    leave_signals_to_parent()
    connection = socket.socket(fileno=fd)
    first = receive(connection)
    if first is None:
        return
    sys.path += [entry for entry in pickle.loads(first) if entry not in sys.path]
    import torch

    torch.set_num_threads(1)
    while (message := receive(connection)) is not None:
        answer(connection, *outcome(message))
