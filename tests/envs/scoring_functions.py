"""Functions that scoring processes run in the tests."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from typing import Any


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def hang() -> None:
    while True:  # pure Python loop: no timeout inside the process could stop it politely
        pass


def sleep_then(seconds: float, value: Any) -> Any:
    time.sleep(seconds)
    return value


def die() -> None:
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise KeyError("no such unit")


class Odd(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def fail_oddly() -> None:
    raise Odd(1, 2)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def fail_with(error: str) -> None:
    """Raise what has no text, no characters, or another meaning in a coroutine."""
    if error == "mute":
        raise Mute
    raise {"stop": StopIteration(3), "astop": StopAsyncIteration(), "half": ValueError("\ud800")}[error]


def unpicklable() -> Any:
    return lambda: 0


def spawn_child() -> int:
    return subprocess.Popen(["sleep", "60"]).pid


def heavy_modules() -> list[str]:
    return [m for m in ("torch", "transformers", "numpy") if m in sys.modules]


def reward(text: str, answer: Any, info: dict[str, Any]) -> Any:
    kind, _, _ = text.partition(":")
    if kind == "raise":
        raise ValueError("bad unit")
    if kind == "hang":
        hang()
    if kind == "die":
        die()
    odd: dict[str, Any] = {"nan": math.nan, "inf": math.inf, "none": None, "str": "1.0", "list": [1], "true": True}
    return odd[kind] if kind in odd else float(text == answer)


async def async_reward(text: str, answer: Any, info: dict[str, Any]) -> float:
    return 1.0


def two_arguments(text: str, answer: Any) -> float:
    return 1.0


not_a_function = 5


def leave(how: str) -> None:
    """End the process, or try to."""
    if how == "sys.exit":
        sys.exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    os._exit(3)


def sleep_in_c() -> None:
    """For ever, in one call."""
    time.sleep(1e6)


def leave_an_alarm() -> None:
    """It would go off in whatever runs next."""
    signal.setitimer(signal.ITIMER_REAL, 60.0)


def alarm_left() -> float:
    """Seconds until an alarm goes off; 0: there is none."""
    return signal.getitimer(signal.ITIMER_REAL)[0]


def deep_error(text: str, answer: Any, info: dict[str, Any]) -> float:
    return float(math.sqrt(_fails(text)))


def _fails(text: str) -> float:
    raise ZeroDivisionError(f"no unit in {text!r}")


async def odd_async_reward(text: str, answer: Any, info: dict[str, Any]) -> Any:
    return await async_reward(text, answer, info) / 2


def leaves(text: str, answer: Any, info: dict[str, Any]) -> float:
    raise SystemExit("enough")
