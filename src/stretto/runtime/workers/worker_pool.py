"""The worker processes of a run, started before the run knows what they will be told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from stretto.data.identity import Role
from stretto.kernel.supervised import Child
from stretto.runtime.workers.spawn import spawn
from stretto.weights.memory import create

LEARNER = "learner"
"""Name of the worker that is one."""


class WorkerPool:
    """Context manager: starts a learner and engines; on exit none of them is left.

    ``acquire(name)`` hands over the process that was started for ``name``, then starts new ones (restarts).
    """

    def __init__(self, engines: list[str], log_dir: Path, threads: int, model_type: str) -> None:
        self._log_dir, self._threads, self._model_type = log_dir, threads, model_type
        self.memory_fd = create()
        self._all: list[Child] = []
        self._roles = {LEARNER: Role.LEARNER, **dict.fromkeys(engines, Role.ENGINE)}
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
            name, self._roles[name], log_dir=self._log_dir, memory_fd=self.memory_fd, threads=self._threads,
            model_type=self._model_type,
        )  # fmt: skip
        self._all.append(started)
        return started

    def kill(self) -> None:
        """End whatever still lives now."""
        for started in self._all:
            if started.alive:
                started.strike()

    def close(self) -> None:
        """Kill whatever still lives and give the memory back."""
        for started in self._all:
            started.kill()
        os.close(self.memory_fd)

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
