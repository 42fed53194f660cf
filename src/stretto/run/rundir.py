"""The run's directory: may a run start or go on in it, who holds it, and what to do after a run that failed."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from stretto.kernel.errors import CheckpointError, ConfigError, DataError
from stretto.kernel.logfile import GZIP, PLAIN, stream_events
from stretto.runtime.manifest import latest, unfinished
from stretto.weights.transport import DIRECTORY

LOCK = ".lock"
_PROBE = ".stretto-"
_LEFT_OVER = {LOCK, "config.toml", "config.toml.part", "logs", "rollouts", DIRECTORY}
"""What a start that failed before its first event leaves behind."""


def check_new(out: Path) -> None:
    """Raise ``ConfigError`` unless a new run can be made at ``out``. Leaves nothing behind."""
    setting = f"out = {str(out)!r}"
    if "\0" in str(out):
        raise ConfigError(f"{setting} holds a NUL character; choose another out=...")
    try:
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{setting} is not a directory; choose another out=...")
        check_contents(out)
        place = Path(os.path.abspath(out))
        parent = next(p for p in (place, *place.parents) if p.exists())
        with tempfile.TemporaryDirectory(prefix=_PROBE, dir=parent):
            pass  # that it can be written is only known when something was
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{setting} can't be created: {reason}; choose another out=...") from error


def check_contents(out: Path) -> None:
    """Raise ``ConfigError`` if this directory holds a run, or anything else."""
    setting = f"out = {str(out)!r}"
    names = {p.name for p in out.iterdir() if not p.name.startswith(_PROBE)} if out.exists() else set()
    if names & {PLAIN, GZIP}:
        ways = ["choose another out=...", "remove the directory"]
        if latest(out / "checkpoints") is not None or untrained(out):
            ways.insert(0, f"go on with it ({resume_command(out)})")
        raise ConfigError(f"{setting} already holds a run: {', '.join(ways[:-1])} or {ways[-1]}")
    if foreign := sorted(names - _LEFT_OVER):
        raise ConfigError(
            f"{setting} is a directory with other things in it ({', '.join(foreign[:3])}"
            f"{', ...' if len(foreign) > 3 else ''}), not a run: choose another out=... or empty it"
        )


def next_free(out: Path) -> Path:
    """``out`` if a new run can be made there, else the first of ``out-2``, ``out-3``, ... where one can."""
    for number in itertools.count(1):
        place = out if number == 1 else out.with_name(f"{out.name}-{number}")
        try:
            if place.exists() and not place.is_dir():
                continue
            check_contents(place)
            check_free(place)
        except ConfigError:
            continue
        except (OSError, ValueError):
            return out  # it can't be looked into: ``check_new`` says why
        return place
    raise AssertionError


def make(out: Path) -> None:
    """Make the directory of a new run."""
    try:
        (out / "rollouts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"out = {str(out)!r} can't be created: {error.strerror}; choose another out=...") from error


@contextlib.contextmanager
def hold(out: Path) -> Iterator[None]:
    """Nobody else may start or go on with a run here meanwhile. The kernel lets go when this process is gone."""
    with open(out / LOCK, "a+") as file:
        _take(file, out)
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def check_free(out: Path) -> None:
    """Raise ``ConfigError`` if a process runs in this directory now. Changes nothing."""
    with contextlib.suppress(FileNotFoundError), open(out / LOCK) as file:
        _take(file, out)


def _take(file: TextIO, out: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        raise ConfigError(
            f"{out} is in use: process {holder} runs in it. Wait until it has ended, or end it (kill {holder})"
        ) from None


def mode_of(out: Path) -> str | None:
    """How the run in this directory was made (train, rehearse, simulate); None if its log doesn't say."""
    try:
        mode = next(stream_events(out, any_format=True), {}).get("mode")
    except (OSError, DataError, AttributeError):
        return None
    return mode if isinstance(mode, str) else None


def check_mode(out: Path, mode: str) -> None:
    """Raise ``ConfigError`` if the run was made in another mode: its weights, clock and log would be mixed up."""
    made = mode_of(out)
    if made is not None and made != mode:
        raise ConfigError(
            f"{out} was made by `stretto {made}`; `stretto {mode}` can't go on with it. Use: {resume_command(out)}"
        )


def run_of(path: Path) -> Path:
    """The run's directory, given it or one of its checkpoints."""
    run = path if (path / "config.toml").exists() else path.absolute().parent.parent
    if not (run / "config.toml").exists():
        raise ConfigError(
            f"--resume {path}: neither a run directory nor one of its checkpoints (no config.toml; a run "
            "has one from its first event on: what ended before that lost nothing and is started anew)"
        )
    return run


def find_checkpoint(path: Path) -> Path | None:
    """A checkpoint directory itself, or the newest one of a run; None if the run ended before it had trained anything,
    so that it can begin again."""
    if (path / "manifest.json").exists():
        return path
    found = latest(path / "checkpoints")
    if found is None and not untrained(path):
        raise CheckpointError(
            f"{path} holds no complete checkpoint (looked in {path / 'checkpoints'}), and what it trained is lost: "
            "delete it and start again, or choose another out=..."
        )
    return found


def untrained(out: Path) -> bool:
    """Did the run in this directory end before its first step did? Then nothing is lost if it begins again."""
    try:
        return not any(
            isinstance(event, dict) and event.get("e") == "StepEnd" for event in stream_events(out, any_format=True)
        )
    except DataError:
        return True  # there is no log
    except OSError:
        return False


def resume_command(out: Path) -> str:
    """What to type to go on with this run."""
    return f"stretto {mode_of(out) or 'train'} --resume {shlex.quote(str(out))}"


def what_next(out: Path) -> str:
    """After a run that didn't end well: how to go on."""
    last = latest(out / "checkpoints")
    if last is None and untrained(out):
        return f"Nothing had trained yet, so nothing is lost; start it again with: {resume_command(out)}"
    if last is None:
        return f"There is no checkpoint yet: delete {out} or choose another out=..."
    return f"The last complete checkpoint is {last}; go on with: {resume_command(out)}"


def goes_on_with(out: Path) -> int:
    """Trajectories that a run which was interrupted cancelled, and goes on with when it is resumed."""
    last = latest(out / "checkpoints")
    return 0 if last is None else unfinished(last)


def weights_sha256(model: Path) -> str:
    """SHA-256 over the weights saved in the directory ``model``; empty if there are none (simulate)."""
    digest = hashlib.sha256()
    files = sorted(model.glob("*.safetensors"))
    for path in files:
        digest.update(path.read_bytes())
    return digest.hexdigest() if files else ""
