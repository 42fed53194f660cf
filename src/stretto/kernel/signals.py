"""The signals that end a command: SIGINT, SIGTERM, SIGHUP. The first one is heard politely where somebody can be polite
(a run that saves), everywhere else at once; the second one ends everything. Nothing that a command waits for can keep
it longer than a deadline."""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

_exit = os._exit  # the real one, whatever is put in its place
CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_S = 10.0
"""For what a command does at its end once nobody is polite any more: closing files, killing processes."""
_SLICE_S = 0.25


class Interrupted(KeyboardInterrupt):
    """One of ``CAUGHT``; ``exit_code`` is what a shell expects after it, ``why`` it ends so suddenly if not by a second
    signal."""

    def __init__(self, number: int, why: str = "") -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code, self.why = 128 + number, why


class Signals:
    """What came so far, and who is told. ``hear`` makes it."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self.expired = False
        """Did the deadline of the polite one pass?"""
        self.told = False
        """Has a message of its own been printed?"""
        self._stop: Callable[[], object] | None = None
        self._end: Callable[[], object] = lambda: None
        self._deadline_s = GRACE_S
        self._watches = 0

    @property
    def first(self) -> Interrupted | None:
        """The first signal that came."""
        return Interrupted(self.came[0]) if self.came else None

    @contextlib.contextmanager
    def polite(self, stop: Callable[[], object], end: Callable[[], object], deadline_s: float) -> Iterator[None]:
        """Inside: the first signal calls ``stop``; the second one, or ``deadline_s`` after the first, calls ``end``.
        Both are called from a signal handler or another thread: they may only leave word with the loop."""
        self._stop, self._end, self._deadline_s = stop, end, deadline_s
        if self.came:  # somebody swallowed what was raised for it
            self._begin()
        try:
            yield
        finally:
            self._stop = None
            after_s = GRACE_S if self.expired or len(self.came) > 1 else self._deadline_s  # for a report, say
            self._watch(after_s if self.came else None, self._leave)

    def heard(self, number: int, frame: object) -> None:
        """The handler."""
        self.came.append(number)
        if self._stop is None:
            if len(self.came) > 1:
                self._leave()
            self._watch(GRACE_S, self._leave)
            raise Interrupted(number)
        if len(self.came) == 1:
            self._begin()
        else:
            self._finish()

    def close(self) -> None:
        """Nobody is told any more."""
        self._watch(None, self._leave)

    def _begin(self) -> None:
        assert self._stop is not None
        self._watch(self._deadline_s, self._expire)
        self._stop()

    def _expire(self) -> None:
        self.expired = True
        self._finish()

    def _finish(self) -> None:
        self._watch(GRACE_S, self._leave)
        self._end()

    def _watch(self, seconds: float | None, then: Callable[[], None]) -> None:
        """Call ``then`` in so many seconds, unless there is another watch by then. Pauses of the process (Ctrl-Z) are
        no part of them."""
        self._watches += 1
        mine = self._watches

        def wait(left_s: float) -> None:
            while left_s > 0:
                time.sleep(min(_SLICE_S, left_s))
                left_s -= _SLICE_S
                if self._watches != mine:
                    return
            then()

        if seconds is not None:
            _thread.start_new_thread(wait, (seconds,))  # threading's own locks may be held by what was interrupted

    def _leave(self) -> None:
        """Now, whatever hangs. Children end with their parent."""
        with contextlib.suppress(OSError):
            if os.isatty(2):
                os.write(2, b"\x1b[?25h\n")  # a live view had hidden the cursor
        _exit(128 + self.came[0])


_current: Signals | None = None


@contextlib.contextmanager
def hear() -> Iterator[Signals]:
    """Hear signals inside; what is ignored when a command starts stays so where that is custom (``nohup``). Inside
    another one it is that one. Only the main thread can hear."""
    global _current
    if _current is not None:
        yield _current
        return
    mine = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield mine
        return
    _current = mine
    before = {}
    try:
        for number in CAUGHT:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, mine.heard)
        yield mine
    finally:
        mine.close()
        _current = None
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
