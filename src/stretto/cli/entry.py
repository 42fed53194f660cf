"""The entry point: expected errors become one message and an exit code, a bug keeps its traceback."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from rich.text import Text

from stretto.cli.app import app, err
from stretto.errors import StrettoError


class Terminated(KeyboardInterrupt):
    """SIGTERM: as an interrupt, with an exit code of its own."""


def main() -> None:
    """Entry point: expected errors become one message and exit code 1."""
    if (here := os.getcwd()) not in sys.path:  # `module:Class` may be a file of the working directory
        sys.path.append(here)
    with _sigterm() as terminated:
        try:
            code = app(standalone_mode=False)  # Typer hands the code of typer.Exit back instead of raising it
            if code == exit_code(KeyboardInterrupt()) and terminated:  # it came while Typer itself was at work
                raise Terminated
            sys.stdout.flush()
        except StrettoError as error:
            _say(type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])]))
            sys.exit(1)
        except OSError as error:  # of a run's own files, ``launch`` says more
            _say("OSError", f"{error.filename or 'the standard output'}: {error.strerror or error}")
            _mute()
            sys.exit(1)
        except KeyboardInterrupt as error:
            _exit_interrupted(error)
        except Exception as error:
            if type(error).__name__ == "Abort":  # what Click makes of KeyboardInterrupt
                _exit_interrupted(error.__cause__ or error.__context__)
            if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
                error.show()
                sys.exit(getattr(error, "exit_code", 2))
            raise
        sys.exit(code or 0)


@contextlib.contextmanager
def _sigterm() -> Iterator[list[int]]:
    """SIGTERM raises ``Terminated``; the list is empty until one came."""
    came: list[int] = []

    def stop(number: int, frame: object) -> None:
        came.append(number)
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(kind: str, text: str) -> None:
    with contextlib.suppress(OSError):  # stderr may be full or closed, too
        err.print(Text.assemble((kind, "bold red"), f": {text}"))


def _mute() -> None:
    """What is still buffered for a stdout that can't be written must not raise once more at exit."""
    if sys.stdout is sys.__stdout__:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _exit_interrupted(error: BaseException | None) -> None:
    with contextlib.suppress(OSError):
        err.print("interrupted")
    sys.exit(exit_code(error))


def exit_code(error: BaseException | None) -> int:
    """The code that a shell expects after SIGTERM or an interrupt."""
    return 128 + (signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT)
