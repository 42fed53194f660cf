"""Arithmetic with a fixed number of digits: ``12+34=`` asks for ``46``.

A tenth of all problems (chosen by a hash of the problem alone, so for every seed the same) is held out:
training rejects them, evaluation draws nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stretto.envs.base import ENVIRONMENTS, Task
from stretto.envs.counter import mix, text_share
from stretto.envs.single_turn import SingleTurn
from stretto.envs.verifiers import Score
from stretto.errors import ConfigError
from stretto.trajectory import Ints

Operator = Literal["+", "-", "*"]
_EVAL_STREAM = 0xE7A1
_CORRECT, _WRONG = Score(1.0), Score(0.0)


@ENVIRONMENTS.register("arithmetic")
@dataclass
class Arithmetic(SingleTurn):
    """``digits``: digits of both operands; ``operators``: drawn uniformly; ``held_out``: share kept for evaluation."""

    digits: int = 2
    operators: tuple[Operator, ...] = ("+",)
    held_out: float = 0.1

    alphabet = "0123456789+-*="

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 9:
            raise ConfigError(f"env.digits = {self.digits}: must be 1 to 9")
        if not self.operators:
            raise ConfigError("env.operators is empty: name at least one of +, -, *")
        if not 0 < self.held_out < 1:
            raise ConfigError(f"env.held_out = {self.held_out}: must lie between 0 and 1")
        self._low = 10 ** (self.digits - 1) if self.digits > 1 else 0
        self._span = 10**self.digits - self._low

    def _draw(self, *counters: int) -> str:
        bits = mix(*counters)
        a, bits = bits % self._span, bits // self._span
        operator = self.operators[bits % len(self.operators)]
        b = mix(*counters, 1) % self._span
        return f"{self._low + a}{operator}{self._low + b}"

    def is_held_out(self, problem: str) -> bool:
        """Whether only evaluation may draw this problem."""
        return text_share(problem, "arithmetic") < self.held_out

    def _task(self, index: int, problem: str) -> Task:
        answer = str(solve(problem))
        expected = (self.tokenizer.encode(answer).tolist(), [*self.tokenizer.eos_ids])
        prompt = self.tokenizer.encode(problem + "=")
        prompt.flags.writeable = False  # so that all members share it
        return Task(index, prompt, answer, {"expected": expected})

    def task(self, index: int) -> Task:
        """Training problem ``index``: a function of (seed, index)."""
        attempt = 0
        while self.is_held_out(problem := self._draw(self.seed, index, attempt)):
            attempt += 1
        return self._task(index, problem)

    def eval_tasks(self, n: int) -> list[Task]:
        """At most n distinct held-out problems, for every seed the same (a small space may hold fewer)."""
        found: dict[str, None] = {}
        space = self._span**2 * len(self.operators)
        for attempt in range(min(40 * space, 100 * n + 10_000)):
            if len(found) >= n:
                break
            problem = self._draw(_EVAL_STREAM, attempt)
            if self.is_held_out(problem):
                found[problem] = None
        return [self._task(-1 - i, problem) for i, problem in enumerate(found)]

    async def own_score(self, client: object, task: Task, tokens: Ints) -> Score:
        """1 if the sampled ids are those of the answer, with or without a closing eos."""
        expected, eos = task.info["expected"]
        ids = tokens.tolist()
        if ids and ids[-1] in eos:
            ids.pop()
        return _CORRECT if ids == expected else _WRONG


def solve(problem: str) -> int:
    """The value of ``a+b``, ``a-b`` or ``a*b``."""
    for operator in "+*-":
        a, found, b = problem.partition(operator)
        if found:
            return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
    raise ValueError(problem)
