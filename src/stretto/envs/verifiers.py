"""Verifiers: text and expected answer in, a reward out.

Cheap verifiers run where they are called; the others (a regular expression can take exponential time, a math
parser can hang, a user's function can do anything) run in a process that can be killed. A reward is a finite
number or absent with a reason; absent never trains.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from stretto.components import Registry, load_object, split_path
from stretto.envs.base import LateClient
from stretto.envs.trial import try_function
from stretto.errors import ConfigError, DataError, DeadlineError, WorkerError

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class Verifier(Protocol):
    """Called as ``verifier(text, answer, info)``; ``cheap``: takes microseconds, never raises, never hangs."""

    @property
    def cheap(self) -> bool: ...

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> Any: ...


VERIFIERS: Registry[Verifier] = Registry("reward")


def make_verifier(kind: str, options: Mapping[str, Any] | None = None) -> Verifier:
    """The verifier ``kind``: exact, numeric, regex, math-verify, or a user's ``module:function``."""
    if ":" not in kind:
        return VERIFIERS.build(kind, options or {}, "reward")
    if options:
        raise ConfigError(f"reward_options: reward = {kind!r} is a function and takes none")
    split_path(kind, "reward")
    try_function(kind)
    return UserFunction(kind)


@VERIFIERS.register("exact")
@dataclass(frozen=True)
class Exact:
    """1 if the text equals the answer, white space at both ends aside."""

    ignore_case: bool = False
    cheap = True

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> float:
        found, expected = text.strip(), str(answer).strip()
        if self.ignore_case:
            found, expected = found.casefold(), expected.casefold()
        return float(found == expected)


def last_number(text: str) -> float | None:
    """The last number in ``text`` (thousands separators allowed), or None."""
    found = _NUMBER.findall(text)
    if not found:
        return None
    try:
        return float(found[-1].replace(",", ""))
    except ValueError:
        return None


@VERIFIERS.register("numeric")
@dataclass(frozen=True)
class Numeric:
    """1 if the last number in the text is the answer, within ``tolerance`` x max(1, abs(answer))."""

    tolerance: float = 1e-6
    cheap = True

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> float | None:
        expected = float(answer) if isinstance(answer, (int, float)) else last_number(str(answer))
        if expected is None or not math.isfinite(expected):
            return None
        found = last_number(text)
        if found is None or not math.isfinite(found):
            return 0.0
        return float(abs(found - expected) <= self.tolerance * max(1.0, abs(expected)))


@VERIFIERS.register("regex")
@dataclass(frozen=True)
class Regex:
    """With ``pattern``: 1 if its last match (group 1 if it has one) equals the answer. Without: the answer itself
    is the pattern, and 1 means that it matches somewhere in the text."""

    pattern: str = ""
    ignore_case: bool = False
    cheap = False

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise ConfigError(f"reward_options.pattern = {self.pattern!r}: {error}") from error

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> float:
        flags = re.DOTALL | (re.IGNORECASE if self.ignore_case else 0)
        if not self.pattern:
            return float(re.search(str(answer), text, flags) is not None)
        matches = list(re.finditer(self.pattern, text, flags))
        if not matches:
            return 0.0
        last = matches[-1]
        found = last.group(1) if last.re.groups else last.group(0)
        return Exact(self.ignore_case)(found or "", answer, info)


@VERIFIERS.register("math-verify")
@dataclass(frozen=True)
class MathVerify:
    """1 if the package ``math-verify`` finds text and answer mathematically equal."""

    cheap = False
    imports = ("math_verify",)

    def __post_init__(self) -> None:
        import importlib.util

        if importlib.util.find_spec("math_verify") is None:
            raise ConfigError("reward = 'math-verify': the package is missing; pip install math-verify")

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> float:
        from math_verify import parse, verify

        # The process has its own deadline; the package's alarm would only work in a main thread.
        expected = parse(str(answer), parsing_timeout=None)
        return float(verify(expected, parse(text, parsing_timeout=None), timeout_seconds=None))


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
