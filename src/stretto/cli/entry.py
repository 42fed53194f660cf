"""The entry point: expected errors become one message and an exit code, a bug keeps its traceback."""

from __future__ import annotations

import os
import signal
import sys

from rich.text import Text

from stretto.cli.app import app, err
from stretto.kernel.errors import StrettoError
from stretto.kernel.signals import Interrupted, Signals, hear
from stretto.observe.terminal import mute


def main() -> None:
    """Entry point: expected errors become one message and exit code 1; a signal that ends commands (SIGINT, SIGTERM,
    SIGHUP) exits with 128 and its number, whatever became of the command."""
    if (here := os.getcwd()) not in sys.path:  # `module:Class` may be a file of the working directory
        sys.path.append(here)
    try:
        with hear() as signals:
            code = _run(signals)
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except (OSError, ValueError):  # nobody reads any more: no news at exit
                    mute(stream)
            sys.exit(code if signals.first is None else signals.first.exit_code)
    except Interrupted as early:  # it came while signals only began to be heard
        err.print("interrupted")
        sys.exit(early.exit_code)


def _run(signals: Signals) -> int:
    """The command's exit code, after its last message."""
    try:
        code = app(standalone_mode=False)  # Typer hands the code of typer.Exit back instead of raising it
        sys.stdout.flush()
        return int(code or 0) if signals.first is None else _interrupted(signals)  # which Typer swallows
    except StrettoError as error:
        _say(type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])]))
        return 1
    except BrokenPipeError:  # `stretto recipes | head`: whoever reads has enough
        mute(sys.__stdout__)
        return 128 + signal.SIGPIPE
    except SystemExit as left:
        if "Pacify" not in type(sys.stdout).__name__:  # what Click puts in the place of such a stdout before it exits
            raise
        mute(sys.__stdout__)
        return 128 + signal.SIGPIPE if left.code == 1 else int(left.code or 0)
    except OSError as error:  # of a run's own files, ``launch`` says more
        _say("OSError", f"{error.filename or 'the standard output'}: {error.strerror or error}")
        mute(sys.stdout)
        return 1
    except KeyboardInterrupt:
        return _interrupted(signals)
    except Exception as error:
        if type(error).__name__ == "Abort":  # what Click makes of KeyboardInterrupt
            return _interrupted(signals)
        if type(error).__module__.startswith(("click", "typer")) and hasattr(error, "show"):
            error.show()
            option = str(getattr(error, "option_name", ""))
            if option.startswith("--") and not getattr(error, "possibilities", None):
                err.print(f"Settings have no dashes: {option[2:].replace('-', '_')}=VALUE")
            return int(getattr(error, "exit_code", 2))
        raise


def _say(kind: str, text: str) -> None:
    err.print(Text.assemble((kind, "bold red"), f": {text}"))


def _interrupted(signals: Signals) -> int:
    if not signals.told:
        err.print("interrupted")
    return 128 + signal.SIGINT if signals.first is None else signals.first.exit_code
