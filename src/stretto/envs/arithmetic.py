"""Arithmetic with a fixed number of digits: ``12+34=`` asks for ``46``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from stretto.data.counter import mix
from stretto.envs.base import ENVIRONMENTS
from stretto.envs.exact import ExactAnswer
from stretto.kernel.errors import ConfigError

Operator = Literal["+", "-", "*"]


@ENVIRONMENTS.register("arithmetic")
@dataclass
class Arithmetic(ExactAnswer):
    """``digits``: digits of both operands; ``operators``: sampled uniformly; ``held_out``: share kept for
    evaluation."""

    digits: int = 2
    operators: tuple[Operator, ...] = ("+",)

    alphabet = "0123456789+-*="
    salt: ClassVar[str] = "arithmetic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.digits <= 9:
            raise ConfigError(f"env.digits = {self.digits}: must be 1 to 9")
        if not self.operators:
            raise ConfigError("env.operators is empty: name at least one of +, -, *")
        self._low = 10 ** (self.digits - 1) if self.digits > 1 else 0
        self._span = 10**self.digits - self._low

    @property
    def space(self) -> int:
        """Pairs of operands, for each operator."""
        return self._span**2 * len(self.operators)

    def sample_problem(self, *counters: int) -> str:
        """``a+b`` or the like, uniformly."""
        bits = mix(*counters)
        a, bits = bits % self._span, bits // self._span
        operator = self.operators[bits % len(self.operators)]
        b = mix(*counters, 1) % self._span
        return f"{self._low + a}{operator}{self._low + b}"

    def answer(self, problem: str) -> str:
        """The value in decimal."""
        return str(solve(problem))


def solve(problem: str) -> int:
    """The value of ``a+b``, ``a-b`` or ``a*b``."""
    for operator in "+*-":
        a, found, b = problem.partition(operator)
        if found:
            return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
    raise ValueError(problem)
