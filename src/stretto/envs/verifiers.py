"""Verifiers: text and expected answer in, a reward out.

Cheap verifiers run where they are called; the others (a regular expression can take exponential time, a math
parser can hang, a user's function can do anything) run in a process that can be killed. A reward is a finite
number or absent with a reason; absent never trains.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stretto.components import Registry, load_object, split_path
from stretto.envs.base import LateClient
from stretto.envs.trial import try_function
from stretto.errors import ConfigError, DataError, DeadlineError, WorkerError


class Verifier(Protocol):
    """Called as ``verifier(text, answer, info)``; ``cheap``: takes microseconds, never raises, never hangs."""

    @property
    def cheap(self) -> bool: ...

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> Any: ...


VERIFIERS: Registry[Verifier] = Registry("reward", ("stretto.envs.graders",))


def make_verifier(kind: str, options: Mapping[str, Any] | None = None) -> Verifier:
    """The verifier ``kind``: exact, numeric, regex, math-verify, or a user's ``module:function``."""
    if ":" not in kind:
        return VERIFIERS.build(kind, options or {}, "reward")
    if options:
        raise ConfigError(f"reward_options: reward = {kind!r} is a function and takes none")
    split_path(kind, "reward")
    try_function(kind)
    return UserFunction(kind)


def user_function(path: str) -> Callable[..., Any]:
    """Import a user's ``module:function``; ``ConfigError`` if it can't be called as f(text, answer, info)."""
    function = load_object(path, "reward")
    expected = "expected f(text, answer, info) -> float"
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"reward = {path!r}: not a function; {expected}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"reward = {path!r}: an async function; {expected}, without async")
    with contextlib.suppress(ValueError):  # a function in C without a signature
        try:
            inspect.signature(function).bind("", "", {})
        except TypeError as error:
            raise ConfigError(f"reward = {path!r}: {error}; {expected}") from error
    return function


@dataclass(frozen=True)
class UserFunction:
    """A user's ``module:function`` called as f(text, answer, info)."""

    path: str
    cheap = False

    @property
    def imports(self) -> tuple[str, ...]:
        """What a scoring process loads before its first call."""
        return (self.path,)

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> Any:
        return load_object(self.path, "reward")(text, answer, info)


@dataclass(frozen=True, slots=True)
class Score:
    """A finite ``reward``, or None and the ``reason`` why it is absent."""

    reward: float | None
    reason: str = ""


def normalize(value: Any) -> Score:
    """``value`` as a score: only finite numbers (booleans count as 0 and 1) are rewards."""
    if isinstance(value, Score):
        return value
    if value is None:
        return Score(None, "the reward function returned None")
    if isinstance(value, (str, bytes)):
        return Score(None, f"the reward function returned {value[:80]!r}, which is not a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return Score(None, f"the reward function returned a {type(value).__name__}, which is not a number")
    if not math.isfinite(number):
        return Score(None, f"the reward is {number}")
    return Score(number)


@dataclass(frozen=True)
class Run:
    """A verifier's call as a scoring process makes it: a score is small and always picklable."""

    verifier: Verifier

    @property
    def name(self) -> str:
        """For messages."""
        return f"reward {getattr(self.verifier, 'path', type(self.verifier).__name__)}"

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> Score:
        return normalize(self.verifier(text, answer, info))


async def score(verifier: Verifier, client: LateClient, text: str, answer: Any, info: Mapping[str, Any]) -> Score:
    """Reward of ``text``. A hang ends at the deadline and leaves the reward absent; whatever the verifier raises
    becomes a ``DataError`` with its reason, which fails this one rollout."""
    if verifier.cheap:
        return normalize(verifier(text, answer, info))
    try:
        result: Score = await client.call(Run(verifier), text, answer, dict(info))
        return result
    except DeadlineError as error:
        return Score(None, f"scoring passed its deadline: {error}")
    except WorkerError:
        raise
    except Exception as error:
        raise DataError(f"{Run(verifier).name} raised {type(error).__name__}: {error}") from error
