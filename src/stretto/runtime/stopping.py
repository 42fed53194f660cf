"""How a run hears the signals that end commands, and what a pause of its process means to it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial

from stretto.kernel.clock import WallLoop
from stretto.kernel.signals import Signals
from stretto.runtime.orchestrator import Orchestrator


@contextlib.contextmanager
def stoppable(
    orchestrator: Orchestrator, on_progress: Callable[[str], None], stop_s: float, signals: Signals | None
) -> Iterator[None]:
    """Inside: the first signal lets the run finish its step, save and end; the second one, or ``stop_s`` after the
    first, cancels the task that is here. Pauses of the process are no time on the wall clock's loop."""
    loop, main = asyncio.get_running_loop(), asyncio.current_task()
    assert main is not None

    def stop() -> None:
        on_progress(f"stopping: what runs is finished and saved first, in {stop_s:g} s at most; once more ends at once")
        orchestrator.stop()

    with contextlib.ExitStack() as inside:
        if signals is not None:
            soon = loop.call_soon_threadsafe
            inside.enter_context(signals.polite(partial(soon, stop), partial(soon, main.cancel), stop_s))
        if isinstance(loop, WallLoop) and threading.current_thread() is threading.main_thread():
            inside.enter_context(loop.minding_pauses())
        yield
