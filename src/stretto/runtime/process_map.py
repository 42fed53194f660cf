"""The same call for many arguments, side by side in processes that never outlive this one."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing.connection import wait
from typing import Any, Self

from stretto.kernel.child import leave_signals_to_parent


class ProcessMap:
    """``jobs`` processes as a context; with one job everything happens in this process, in turn. Whatever leaves the
    context by an exception (an interrupt, too) ends the processes at once, and so does the death of this one."""

    def __init__(self, jobs: int) -> None:
        self._others = set(multiprocessing.active_children())
        spawn = multiprocessing.get_context("spawn")
        self._pool = None if jobs == 1 else ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_start)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            for child in (ours := set(multiprocessing.active_children()) - self._others):
                child.kill()
            for child in ours:
                child.join()
        self._pool.shutdown()

    def results(self, function: Callable[..., Any], arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """``function(*a)`` for each ``a``, as they come. Both must pickle, unless there is one job."""
        if self._pool is None:
            for each in arguments:
                yield function(*each)
        else:
            for future in as_completed([self._pool.submit(function, *each) for each in arguments]):
                yield future.result()


def _start() -> None:
    """In each process: one thread of torch; interrupts are the parent's business, its death is ours."""
    leave_signals_to_parent()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
