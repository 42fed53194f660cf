"""Tasks with one right answer, sampled from a finite space of problems of which a share is held out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from stretto.data.trajectory import Ints, Trajectory
from stretto.envs.base import Client, LateClient, Task
from stretto.envs.held_out import HeldOut
from stretto.envs.single_turn import SingleTurn
from stretto.envs.verifiers import Score
from stretto.kernel.errors import ConfigError

_CORRECT, _WRONG = Score(1.0), Score(0.0)


@dataclass
class ExactAnswer(HeldOut, SingleTurn):
    """Base: a subclass samples problems and solves them. ``held_out``: share kept for evaluation.

    ``slow_share`` of the reward is told ``slow_delay_s`` seconds after the trajectory (0: all at once), as
    ``slow_value`` says: ``whole``, the full reward, which replaces the fast one, or ``rest``, what is missing
    (``slow_mode`` ``replace`` and ``add`` of objective ``rac``). Evaluation is told everything at once.
    """

    held_out: float = 0.1
    slow_share: float = 0.0
    slow_delay_s: float = 0.0
    slow_value: Literal["whole", "rest"] = "whole"

    eval_stream: ClassVar[int] = 0xE7A1

    def __post_init__(self) -> None:
        self.check_held_out()
        if not 0 <= self.slow_share <= 1 or self.slow_delay_s < 0:
            raise ConfigError(
                f"env.slow_share = {self.slow_share} must lie in [0, 1], env.slow_delay_s = {self.slow_delay_s} must "
                "be at least 0"
            )
        if self.slow_delay_s and not self.slow_share:
            raise ConfigError(f"env.slow_delay_s = {self.slow_delay_s}, but env.slow_share = 0: nothing comes late")

    @property
    def promises_late(self) -> bool:
        """Does a part of the reward come late?"""
        return self.slow_share > 0

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        """See ``SingleTurn.rollout``; training gets the fast part of the reward."""
        trajectory = await super().rollout(client, task)
        if self.slow_share and task.index >= 0 and trajectory.reward is not None:
            trajectory.reward *= 1 - self.slow_share
            trajectory.late = True
        return trajectory

    async def late_reward(self, client: LateClient, task: Task, trajectory: Trajectory) -> float | None:
        """What ``slow_value`` says of the reward."""
        await client.sleep(self.slow_delay_s, "late reward")
        written = trajectory.tokens[len(task.prompt) :]
        result = await self.judge(client, task, self.answered(written, trajectory.terminated))
        if result.reward is None or self.slow_value == "whole":
            return result.reward
        return self.slow_share * result.reward

    @abstractmethod
    def answer(self, problem: str) -> str:
        """Its only right answer."""

    def task_of(self, index: int, problem: str) -> Task:
        """The prompt is the problem and ``=``."""
        answer = self.answer(problem)
        expected = (self.tokenizer.encode(answer).tolist(), [*self.tokenizer.eos_ids])
        prompt = self.tokenizer.encode_prompt(problem + "=")
        prompt.flags.writeable = False  # so that all members share it
        return Task(index, prompt, answer, {"expected": expected})

    async def own_score(self, client: LateClient, task: Task, tokens: Ints) -> Score:
        """1 if the answer is the expected one: its ids where a text has one way to be written, else its text."""
        if not self.tokenizer.by_character:
            return await super().own_score(client, task, tokens)
        expected, eos = task.info["expected"]
        ids = tokens.tolist()
        if ids and ids[-1] in eos:
            ids.pop()
        return _CORRECT if ids == expected else _WRONG
