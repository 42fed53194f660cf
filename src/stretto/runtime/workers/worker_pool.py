"""The worker processes of a run, started before the run knows what they will be told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from stretto.config.schema import RunConfig
from stretto.data.identity import Role
from stretto.kernel.supervised import Child
from stretto.runtime.workers.spawn import spawn
from stretto.weights.transport import DIRECTORY, find_transport

LEARNER = "learner"
"""Name of the worker that is one."""


class WorkerPool:
    """Context manager: starts ``workers`` (name: role) and opens the way of weights; on exit no worker is left, nor any
    weights that were staged with ``transport``.

    ``acquire(name)`` hands over the process that was started for ``name``, then starts new ones (restarts).
    """

    def __init__(self, config: RunConfig, workers: Mapping[str, Role], out: Path) -> None:
        """``out``: the run's directory."""
        self._log_dir, self._threads, self._model_type = out / "logs", config.workers.threads, model_type(config.model)
        self.transport = find_transport(config.weights.transport).open(out / DIRECTORY)
        self._all: list[Child] = []
        self._roles = dict(workers)
        self._waiting: dict[str, Child] = {}
        try:
            for name in self._roles:
                self._waiting[name] = self._spawn(name)
        except BaseException:
            self.close()
            raise

    def acquire(self, name: str) -> Child:
        """A started process for this worker."""
        return self._waiting.pop(name, None) or self._spawn(name)

    def _spawn(self, name: str) -> Child:
        started = spawn(
            name, self._roles[name], log_dir=self._log_dir, descriptors=self.transport.place.descriptors,
            threads=self._threads, model_type=self._model_type,
        )  # fmt: skip
        self._all.append(started)
        return started

    def kill(self) -> None:
        """End whatever still lives now."""
        for started in self._all:
            if started.alive:
                started.strike()

    def close(self) -> None:
        """Kill whatever still lives, then remove the weights that are staged."""
        for started in self._all:
            started.kill()
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def model_type(model: str) -> str:
    """The Transformers model type behind the setting ``model``, or nothing if it can't be told beforehand."""
    if model in ("tiny", "smollm2"):
        return "llama"
    try:
        found = json.loads((Path(model).expanduser() / "config.json").read_text()).get("model_type", "")
    except (OSError, ValueError, AttributeError):
        return ""
    return found if isinstance(found, str) else ""
