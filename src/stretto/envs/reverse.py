"""Reversing: ``abca=`` asks for ``acba``. The smallest task that a tiny model learns within a hundred steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.data.counter import mix
from stretto.envs.base import ENVIRONMENTS
from stretto.envs.exact import ExactAnswer
from stretto.kernel.errors import ConfigError

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@ENVIRONMENTS.register("reverse")
@dataclass
class Reverse(ExactAnswer):
    """``letters``: size of the alphabet; ``length``: letters of a word; ``held_out``: share kept for evaluation."""

    letters: int = 8
    length: int = 3

    alphabet = _LETTERS + "="
    salt: ClassVar[str] = "reverse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.letters <= len(_LETTERS):
            raise ConfigError(f"env.letters = {self.letters}: must be 2 to {len(_LETTERS)}")
        if not 1 <= self.length <= 12:
            raise ConfigError(f"env.length = {self.length}: must be 1 to 12")

    @property
    def space(self) -> int:
        """All words of this length."""
        return self.letters**self.length

    def sample_problem(self, *counters: int) -> str:
        """A word, uniformly."""
        return "".join(_LETTERS[mix(*counters, place) % self.letters] for place in range(self.length))

    def answer(self, problem: str) -> str:
        """The word backwards."""
        return problem[::-1]
