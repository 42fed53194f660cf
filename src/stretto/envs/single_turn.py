"""What the environments with one prompt and one answer share: play, decode, verify."""

from __future__ import annotations

from stretto.data.modes import Finish
from stretto.data.trajectory import Ints, Trajectory
from stretto.envs.base import Client, LateClient, Task
from stretto.envs.graders import Exact, spelt
from stretto.envs.verifiers import Score, Verifier, score
from stretto.models.tokenizer import LightTokenizer


class SingleTurn:
    """Base: the policy answers the prompt once. Subclasses make tasks and may override ``own_score``.

    A reward reads what the policy wrote: special tokens (``<think>``, tool calls) too unless ``skip_special_tokens``,
    but the token that ended it only with ``include_stop``.
    """

    tokenizer: LightTokenizer
    seed: int
    verifier: Verifier | None = None
    skip_special_tokens: bool = False
    include_stop: bool = False

    def bind(self, tokenizer: LightTokenizer, seed: int) -> None:
        """Give the tokenizer and the seed of the task order."""
        self.tokenizer = tokenizer
        self.seed = seed

    def use_verifier(self, verifier: Verifier) -> None:
        """Score with ``verifier`` instead of the environment's own rule."""
        self.verifier = verifier

    @property
    def epoch_size(self) -> int | None:
        """Generators have no epochs."""
        return None

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        """Prompt, one completion, score. A completion cut at its token limit is truncated, not terminated."""
        transcript = client.transcript()
        transcript.observe(task.prompt)
        completion = await client.generate(transcript)
        finished = completion.finish == Finish.STOP
        result = await self.judge(client, task, self.answered(completion.tokens, finished))
        return transcript.finish(
            result.reward, terminated=finished, truncated=not finished,
            info=result.info,
        )  # fmt: skip

    def answered(self, tokens: Ints, finished: bool) -> Ints:
        """The completion ``tokens`` [n] without the token that ended it, if one did."""
        return tokens[:-1] if finished and not self.include_stop else tokens

    def written(self, tokens: Ints) -> str:
        """``tokens`` as rewards read them."""
        return self.tokenizer.decode(tokens, special=not self.skip_special_tokens)

    async def judge(self, client: LateClient, task: Task, tokens: Ints) -> Score:
        """What the answer ``tokens`` is worth, to the configured verifier or the environment itself."""
        if self.verifier is None:
            return await self.own_score(client, task, tokens)
        return await score(self.verifier, client, self.written(tokens), task.answer, task.info)

    async def own_score(self, client: LateClient, task: Task, tokens: Ints) -> Score:
        """1 if the decoded answer equals the expected one."""
        return Exact()(self.written(tokens), task.answer, task.info)

    def text(self, trajectory: Trajectory) -> str:
        """The whole trajectory, special tokens shown."""
        return self.tokenizer.decode(trajectory.tokens, special=True)

    def worked_answer(self, task: Task) -> tuple[list[int], list[bool]]:
        """Prompt, answer and eos as ids with the mask of what a supervised start learns."""
        prompt = task.prompt.tolist()
        answer = [*self.tokenizer.encode_inside(spelt(task.answer)).tolist(), *self.tokenizer.eos_ids[:1]]
        return prompt + answer, [False] * len(prompt) + [True] * len(answer)

    def demonstration(self, index: int) -> tuple[list[int], list[bool]]:
        """Training task ``index`` with its answer: (tokens, mask)."""
        return self.worked_answer(self.task(index))

    def task(self, index: int) -> Task:
        """See ``Environment.task``."""
        raise NotImplementedError

    def eval_tasks(self, n: int) -> list[Task]:
        """See ``Environment.eval_tasks``."""
        raise NotImplementedError
