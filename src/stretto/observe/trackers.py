"""Where metrics go besides ``metrics.jsonl``: TensorBoard (always, without torch), Weights & Biases (when asked)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stretto.config.sections import Logging
from stretto.kernel.errors import ConfigError

if TYPE_CHECKING:
    from google.protobuf.message import Message


class Tracker(Protocol):
    """Takes scalars per step."""

    def scalars(self, step: int, t: float, values: Mapping[str, float]) -> None:
        """Finite numbers by name, at a step; ``t`` in seconds of the run's clock."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in ``<run>/tensorboard``. On resume, points at later steps than ``step`` are purged."""

    def __init__(self, directory: Path, step: int | None = None) -> None:
        # imported here: half a second, and not needed to read a run
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2, summary_pb2
        directory.mkdir(parents=True, exist_ok=True)
        taken = sum(1 for _ in directory.iterdir())
        # TensorBoard reads the files of a directory in the order of their names
        self._file = open(directory / f"events.out.tfevents.{taken:010d}.stretto", "wb")  # noqa: SIM115
        self._writer = RecordWriter(self._file)
        self._write(event_pb2.Event(file_version="brain.Event:2"))
        if step is not None:
            started = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(event_pb2.Event(session_log=started, step=step + 1))

    def _write(self, event: Message) -> None:
        self._writer.write(event.SerializeToString())

    def scalars(self, step: int, t: float, values: Mapping[str, float]) -> None:
        """One record with all values; the time axis is the run's clock."""
        value = [self._summary.Summary.Value(tag=tag, simple_value=v) for tag, v in values.items()]
        self._write(self._event.Event(wall_time=t, step=step, summary=self._summary.Summary(value=value)))
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the file."""
        self._writer.close()


class Wandb:
    """Weights & Biases; its own settings (``WANDB_MODE=offline``, ...) come from the environment."""

    def __init__(self, run_dir: Path, project: str, name: str, config: Mapping[str, object]) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                "logging.wandb = true, but wandb isn't installed: pip install wandb, or leave logging.wandb off"
            ) from error
        try:
            self._run = wandb.init(
                project=project, name=name, config=dict(config), dir=str(run_dir), id=run_dir.name, resume="allow"
            )
        except Exception as error:  # no key, no network, no such project: each has a class of its own
            raise ConfigError(
                f"logging.wandb = true, but Weights & Biases did not start: {type(error).__name__}: {error}. Log in "
                "(wandb login), set WANDB_API_KEY, set WANDB_MODE=offline, or leave logging.wandb off"
            ) from error

    def scalars(self, step: int, t: float, values: Mapping[str, float]) -> None:
        """Log under the learner's step."""
        self._run.log({**values, "t": t}, step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


def make_trackers(
    run_dir: Path, logging: Logging, *, name: str, config: Mapping[str, object], step: int | None = None
) -> list[Tracker]:
    """The trackers that ``logging`` asks for; ``step``: the one that a resumed run continues after.

    Raises:
        ConfigError: W&B is asked for and isn't installed, or doesn't start.
    """
    trackers: list[Tracker] = [TensorBoard(run_dir / "tensorboard", step)]
    if logging.wandb:
        trackers.append(Wandb(run_dir, logging.wandb_project, name, config))
    return trackers


def finite(row: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers of a row."""
    return {
        name: float(value)
        for name, value in row.items()
        if isinstance(value, int | float) and name not in ("step", "t") and math.isfinite(value)
    }
