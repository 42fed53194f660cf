"""Problems of which a share is held out, by a hash of the problem alone, so for every seed the same: training rejects
them, evaluation samples nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from stretto.data.counter import text_share
from stretto.envs.base import Task
from stretto.kernel.errors import ConfigError


class HeldOut(ABC):
    """A subclass samples problems and makes them tasks. ``held_out``: share kept for evaluation; ``seed``: of the task
    order."""

    held_out: float
    seed: int

    salt: ClassVar[str]
    """Distinguishes the hash of one kind of problem from that of another."""
    eval_stream: ClassVar[int]
    """First counter of evaluation's samples."""

    @property
    def space(self) -> int | None:
        """How many distinct problems there are, where that may be few."""
        return None

    @abstractmethod
    def sample_problem(self, *counters: int) -> str:
        """A problem: a function of the counters."""

    @abstractmethod
    def task_of(self, index: int, problem: str) -> Task:
        """The problem as task ``index``."""

    def check_held_out(self) -> None:
        """``ConfigError`` unless ``held_out`` leaves something on both sides."""
        if not 0 < self.held_out < 1:
            raise ConfigError(f"env.held_out = {self.held_out}: must lie between 0 and 1")

    def is_held_out(self, problem: str) -> bool:
        """Whether only evaluation may sample this problem."""
        return text_share(problem, self.salt) < self.held_out

    def task(self, index: int) -> Task:
        """Training problem ``index``: a function of (seed, index); never a held-out one."""
        attempt = 0
        while self.is_held_out(problem := self.sample_problem(self.seed, index, attempt)):
            attempt += 1
        return self.task_of(index, problem)

    def eval_tasks(self, n: int) -> list[Task]:
        """At most n distinct held-out problems, for every seed the same (a small space may hold fewer)."""
        found: dict[str, None] = {}
        attempts = 100 * n + 10_000
        for attempt in range(attempts if self.space is None else min(40 * self.space, attempts)):
            if len(found) >= n:
                break
            problem = self.sample_problem(self.eval_stream, attempt)
            if self.is_held_out(problem):
                found[problem] = None
        return [self.task_of(-1 - i, problem) for i, problem in enumerate(found)]
