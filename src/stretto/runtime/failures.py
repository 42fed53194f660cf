"""Why rollouts failed: each reason with its file and line, and the tracebacks once, in ``logs/``."""

from __future__ import annotations

from pathlib import Path

from stretto.errors import origin, trace

FILE = "logs/tracebacks.txt"
_MOST = 20


class Failures:
    """``run``: the run directory; None keeps no tracebacks. The first exception from each place is written."""

    def __init__(self, run: Path | None) -> None:
        self._run = run
        self._seen: set[str] = set()

    def reason(self, error: BaseException) -> str:
        """What was raised and where; for an exception from the user's own code also the file that has its traceback."""
        kind, where = type(error).__name__, origin(error)
        if not where:
            return f"{kind}: {error}"
        self._write(where, error)
        said = str(error)
        at = "" if f" at {where}" in said else f" at {where}"
        return f"{kind}{at}{'' if self._run is None else f' (traceback: {FILE})'}: {said}"

    def _write(self, where: str, error: BaseException) -> None:
        if self._run is None or where in self._seen or len(self._seen) >= _MOST:
            return
        path = self._run / FILE
        path.parent.mkdir(exist_ok=True)
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"first raised at {where}\n{trace(error)}\n")
        self._seen.add(where)
