"""Which role each worker plays, as the log says it."""

from __future__ import annotations

from stretto.data.identity import ENGINES
from stretto.observe.tally import Event


class Roles:
    """Call it with each ``WorkerUp`` and ``RoleChanged``."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._of[event["worker"]] = event["role"]

    def samples(self, worker: str) -> bool:
        """Is it an engine, if only to end what it has begun?"""
        return self._of.get(worker) in ENGINES
