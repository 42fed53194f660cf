"""A first import of a user's reward in a process that can be killed: this one lives on whatever it does."""

from __future__ import annotations

import sys

from stretto.envs.scoring_child import START_DEADLINE_S, command, first_message
from stretto.errors import ConfigError, StrettoError
from stretto.kernel.killable import Killable

_passed: set[tuple[str, ...]] = set()


def try_function(path: str, deadline_s: float = START_DEADLINE_S) -> None:
    """Let a scoring process import the reward ``module:function``. ``ConfigError`` says what it raised, that it ended
    its process, or that it passed the deadline. A path that passed is not tried again."""
    key = (path, *sys.path)
    if key not in _passed:
        _try(path, deadline_s)
        _passed.add(key)


def _try(path: str, deadline_s: float) -> None:
    setting = f"reward = {path!r}"
    child = Killable(command)
    try:
        ok, value = child.ask(first_message([path]), deadline_s)
    except TimeoutError:
        child.kill()
        raise ConfigError(
            f"{setting}: importing its module takes longer than {deadline_s:g} s; it must not wait or compute at "
            f"import{child.obituary}"
        ) from None
    except EOFError:
        status = child.kill()
        raise ConfigError(
            f"{setting}: importing its module ended the process (exit status {status}){child.obituary}"
        ) from None
    finally:
        child.kill()
    if not ok:
        raise value if isinstance(value, StrettoError) else ConfigError(f"{setting}: {type(value).__name__}: {value}")
