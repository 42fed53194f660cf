"""Verifiers: text and expected answer in, a reward out.

Cheap verifiers run where they are called; the others (a regular expression can take exponential time, a math
parser can hang, a user's function can do anything) run in a process that can be killed. A reward is a finite
number or absent with a reason; absent never trains.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from numbers import Complex, Real
from typing import Protocol, SupportsFloat, SupportsIndex, TypeVar

from stretto.envs.base import LateClient
from stretto.kernel.components import Registry, load_object, split_path
from stretto.kernel.errors import ConfigError, DataError, DeadlineError, WorkerError, origin
from stretto.kernel.probe import probe_imports


class Verifier(Protocol):
    """Called as ``verifier(text, answer, info)``; ``cheap``: takes microseconds, never raises, never hangs."""

    @property
    def cheap(self) -> bool: ...

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> object: ...


T = TypeVar("T")
VERIFIERS: Registry[Verifier] = Registry("reward", ("stretto.envs.graders",))


def make_verifier(kind: str, options: Mapping[str, object] | None = None) -> Verifier:
    """The verifier ``kind``: exact, numeric, regex, math-verify, or a user's ``module:function``."""
    if ":" not in kind:
        return VERIFIERS.build(kind, options or {}, "reward")
    if options:
        raise ConfigError(f"reward_options: reward = {kind!r} is a function and takes none")
    split_path(kind, "reward")
    probe_imports([("reward", kind, "stretto.envs.verifiers:user_function")])
    return UserFunction(kind)


def user_function(path: str) -> Callable[..., object]:
    """Import a user's ``module:function``; ``ConfigError`` if it can't be called as f(text, answer, info)."""
    function = load_object(path, "reward")
    expected = "expected f(text, answer, info) -> float"
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"reward = {path!r}: not a function; {expected}")
    with contextlib.suppress(ValueError):  # a function in C without a signature
        try:
            inspect.signature(function).bind("", "", {})
        except TypeError as error:
            raise ConfigError(f"reward = {path!r}: {error}; {expected}") from error
    return function


@dataclass(frozen=True)
class UserFunction:
    """A user's ``module:function`` called as f(text, answer, info). An ``async`` one is awaited in its process."""

    path: str
    cheap = False

    @property
    def imports(self) -> tuple[str, ...]:
        """What a scoring process loads before its first call."""
        return (self.path,)

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> object:
        result = load_object(self.path, "reward")(text, answer, info)
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result: Awaitable[T]) -> T:
    return await result


@dataclass(frozen=True, slots=True)
class Score:
    """A finite ``reward``, or None and the ``reason`` why it is absent, with the ``error`` if one was raised.
    ``parts``: the value of each of several functions."""

    reward: float | None
    reason: str = ""
    parts: Mapping[str, float | None] | None = None
    error: BaseException | None = None

    @property
    def info(self) -> dict[str, object] | None:
        """What a trajectory keeps of it; None if there is nothing to say."""
        found: dict[str, object] = {}
        if self.reward is None:
            found["reward_absent"] = self.reason
        if self.error is not None:
            found["reward_error"] = self.error
        if self.parts is not None:
            found["rewards"] = dict(self.parts)
        return found or None


def normalize(value: object, name: str = "the reward function") -> Score:
    """What ``name`` returned as a score: only one finite number is a reward (booleans count as 0 and 1, scalars of
    NumPy and PyTorch as what they hold). The reason names who returned what."""
    if type(value) is float and math.isfinite(value):
        return Score(value)
    if isinstance(value, Score):
        return value if value.reward is not None else Score(None, f"{name}: {value.reason}")
    if value is None:
        return Score(None, f"{name} returned None")
    if isinstance(value, (str, bytes)):
        return Score(None, f"{name} returned {value[:80]!r}, which is not a number")
    try:
        if getattr(value, "ndim", 0) or (isinstance(value, Complex) and not isinstance(value, Real)):
            raise TypeError
        if not isinstance(value, SupportsFloat | SupportsIndex):
            raise TypeError
        number = float(value)
    except Exception:  # a type of the user's may raise anything
        return Score(None, f"{name} returned a {type(value).__name__}, which is not a number")
    if not math.isfinite(number):
        return Score(None, f"{name} returned {number}, which is not a finite number")
    return Score(number)


def name_of(verifier: Verifier) -> str:
    """For messages."""
    name = getattr(verifier, "path", None) or getattr(verifier, "component_name", None) or type(verifier).__name__
    return f"reward {name}"


@dataclass(frozen=True)
class Run:
    """A verifier's call as a scoring process makes it: a score is small and always picklable."""

    verifier: Verifier

    @property
    def name(self) -> str:
        """For messages."""
        return name_of(self.verifier)

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> Score:
        return normalize(self.verifier(text, answer, info), self.name)


async def score(verifier: Verifier, client: LateClient, text: str, answer: object, info: Mapping[str, object]) -> Score:
    """Reward of ``text``. A hang ends at the deadline and leaves the reward absent; whatever the verifier raises
    becomes a ``DataError`` that says where, which fails this one rollout."""
    if (several := getattr(verifier, "score", None)) is not None:
        found: Score = await several(client, text, answer, info)
        return found
    name = name_of(verifier)
    if verifier.cheap:
        return normalize(verifier(text, answer, info), name)
    try:
        result: Score = await client.call(Run(verifier), text, answer, dict(info))
        return result
    except DeadlineError as error:
        return Score(None, f"scoring passed its deadline: {error}")
    except WorkerError:
        raise
    except Exception as error:
        where = origin(error)
        raise DataError(f"{name} raised {type(error).__name__}{where and f' at {where}'}: {error!s:.2000}") from error
