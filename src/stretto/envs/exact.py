"""Tasks with one right answer, drawn from a finite space of problems of which a share is held out.

The held-out problems are chosen by a hash of the problem alone, so for every seed the same: training rejects them,
evaluation draws nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from stretto.envs.base import Task
from stretto.envs.counter import text_share
from stretto.envs.single_turn import SingleTurn
from stretto.envs.verifiers import Score
from stretto.errors import ConfigError
from stretto.trajectory import Ints

_EVAL_STREAM = 0xE7A1
_CORRECT, _WRONG = Score(1.0), Score(0.0)


@dataclass
class ExactAnswer(SingleTurn):
    """Base: a subclass draws problems and solves them. ``held_out``: share kept for evaluation."""

    held_out: float = 0.1

    salt: ClassVar[str] = ""
    """Distinguishes the hash of one kind of problem from that of another."""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ConfigError(f"env.held_out = {self.held_out}: must lie between 0 and 1")

    @property
    def space(self) -> int:
        """How many distinct problems there are."""
        raise NotImplementedError

    def draw(self, *counters: int) -> str:
        """A problem: a function of the counters."""
        raise NotImplementedError

    def answer(self, problem: str) -> str:
        """Its only right answer."""
        raise NotImplementedError

    def is_held_out(self, problem: str) -> bool:
        """Whether only evaluation may draw this problem."""
        return text_share(problem, self.salt) < self.held_out

    def task(self, index: int) -> Task:
        """Training problem ``index``: a function of (seed, index)."""
        attempt = 0
        while self.is_held_out(problem := self.draw(self.seed, index, attempt)):
            attempt += 1
        return self._task(index, problem)

    def eval_tasks(self, n: int) -> list[Task]:
        """At most n distinct held-out problems, for every seed the same (a small space may hold fewer)."""
        found: dict[str, None] = {}
        for attempt in range(min(40 * self.space, 100 * n + 10_000)):
            if len(found) >= n:
                break
            problem = self.draw(_EVAL_STREAM, attempt)
            if self.is_held_out(problem):
                found[problem] = None
        return [self._task(-1 - i, problem) for i, problem in enumerate(found)]

    def _task(self, index: int, problem: str) -> Task:
        answer = self.answer(problem)
        expected = (self.tokenizer.encode(answer).tolist(), [*self.tokenizer.eos_ids])
        prompt = self.tokenizer.encode(problem + "=")
        prompt.flags.writeable = False  # so that all members share it
        return Task(index, prompt, answer, {"expected": expected})

    async def own_score(self, client: object, task: Task, tokens: Ints) -> Score:
        """1 if the sampled ids are those of the answer, with or without a closing eos."""
        expected, eos = task.info["expected"]
        ids = tokens.tolist()
        if ids and ids[-1] in eos:
            ids.pop()
        return _CORRECT if ids == expected else _WRONG
