"""Why rollouts failed: each reason with its file and line, and the tracebacks once, in ``logs/``."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from stretto.config.rewards import reward_names
from stretto.config.schema import RunConfig
from stretto.config.sections import Component
from stretto.data.trajectory import Trajectory
from stretto.envs.base import Environment
from stretto.kernel.errors import StrettoError, in_plugin, origin, trace

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
        path, first = self._run / FILE, f"first raised at {where}\n"
        self._seen.add(where)
        if path.is_file() and first in path.read_text(encoding="utf-8", errors="replace"):
            return  # by another part of the run, or before it was resumed
        path.parent.mkdir(exist_ok=True)
        with open(path, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"{first}{trace(error)}\n")


def explained(error: BaseException, config: RunConfig, run: Path) -> StrettoError | None:
    """What ended a run, as one message: what code of the user's raised, with setting, file and line; its traceback goes
    to ``logs/``. A ``StrettoError`` is itself one. None: nobody's but ours, whose traceback is needed."""
    if isinstance(error, StrettoError):
        return error
    if not in_plugin(error) or (isinstance(error, OSError) and error.errno is None):  # the latter is a timer's
        return None
    files = {frame.filename for frame in traceback.extract_tb(error.__traceback__)}
    named = [(f"control.{hook}", rule.name) for hook, rule in config.control if isinstance(rule, Component)]
    named += [("env", config.env.name), ("objective", config.objective.name), ("engine.kind", config.engine.kind)]
    named += [("reward", name) for name in reward_names(config.reward)]
    whose = next(
        (f"{where} {name!r}" for where, name in named if ":" in name
         and getattr(sys.modules.get(name.partition(":")[0]), "__file__", None) in files),
        "your code" if any(getattr(e, "raised_at", "") for e in (error, error.__cause__)) else None,  # in a worker
    )  # fmt: skip
    if whose is None:
        return None
    return StrettoError(f"{whose} raised {Failures(run).reason(error)}")


def readable(env: Environment, failures: Failures, tell: Callable[[str], object]) -> Callable[[Trajectory], str]:
    """``env.text`` as what it is, a display: where it raises, ``tell`` hears so once, and a placeholder is shown."""
    told = False

    def text(trajectory: Trajectory) -> str:
        nonlocal told
        try:
            return str(env.text(trajectory))
        except (Exception, SystemExit) as error:
            if not told:
                told = True
                tell(f"{type(env).__name__}.text raised {failures.reason(error)}; a placeholder is shown instead")
            return f"<no text: {type(error).__name__}>"

    return text
