"""A console on stderr that outlives its terminal: a run must not die of having nobody to tell."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import IO, Any

from rich.console import Console


class Terminal(Console):
    """``Console`` on stderr; what can't be written any more (closed terminal, pipe without a reader, full disk) is
    dropped."""

    def __init__(
        self, *, file: IO[str] | None = None, markup: bool = True, emoji: bool = True, highlight: bool = True,
        soft_wrap: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(stderr=True, file=file, markup=markup, emoji=emoji, highlight=highlight, soft_wrap=soft_wrap)

    @property
    def file(self) -> IO[str]:
        """What is written to."""
        return _Lasting(super().file)  # type: ignore[return-value]

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file


class Output(Console):
    """``Console`` on stdout for which a reader that has left is an error like any other (Rich would exit with 1)."""

    def on_broken_pipe(self) -> None:
        """Called by Rich while it handles ``BrokenPipeError``."""
        raise


@contextlib.contextmanager
def stdout_for(result: bool) -> Iterator[IO[str]]:
    """Where to print a result. If ``result``, what anybody else prints inside (a user's module, a C library) goes to
    stderr, so that stdout holds nothing but the result."""
    shown = sys.stdout
    redirected = shown is not sys.__stdout__
    if not result:
        yield shown
    elif redirected:
        with contextlib.redirect_stdout(sys.stderr):
            yield shown
    else:
        shown.flush()
        real = os.dup(1)
        try:
            os.dup2(2, 1)
            with open(real, "w", encoding=shown.encoding, closefd=False) as own:
                yield own
        finally:
            with contextlib.suppress(OSError):
                shown.flush()
            os.dup2(real, 1)
            os.close(real)


class _Lasting:
    """A text file whose ``write`` and ``flush`` never raise."""

    def __init__(self, file: IO[str]) -> None:
        self._inner = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, text: str) -> int:
        try:
            return self._inner.write(text)
        except (OSError, ValueError):  # ValueError: it was closed
            mute(self._inner)
            return len(text)

    def flush(self) -> None:
        try:
            self._inner.flush()
        except (OSError, ValueError):
            mute(self._inner)


def mute(file: object) -> None:
    """What is still buffered for a standard stream that can't be written must not raise once more, at exit say."""
    for stream, fd in ((sys.__stdout__, 1), (sys.__stderr__, 2)):
        if file is stream:
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, fd)
                os.close(nowhere)
