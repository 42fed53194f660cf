"""A calculator agent: the policy calls a tool whose answer comes late, reads the result, and answers.

``37*45=`` is played as ``[37*45]`` (policy), ``1665>`` (tool, masked out), ``1665`` and eos (policy). With more terms
the calls chain, from left to right: each takes the result of the one before.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar, Literal

from stretto.data.counter import mix
from stretto.data.modes import Finish
from stretto.data.trajectory import Ints, Trajectory, Transcript
from stretto.envs.arithmetic import Operator
from stretto.envs.base import ENVIRONMENTS, Client, Task
from stretto.envs.held_out import HeldOut
from stretto.envs.verifiers import Score, Verifier, normalize, score
from stretto.kernel.errors import ConfigError
from stretto.models.tokenizer import LightTokenizer

_CALL = re.compile(r"\[(-?\d{1,12}[-+*]-?\d{1,12})\]")
_NORMAL = NormalDist()
REFUSED = "?>"
"""What the tool says to a call that it can't read."""


@ENVIRONMENTS.register("tool-agent")
@dataclass
class ToolAgent(HeldOut):
    """``terms`` numbers of ``digits`` digits need ``terms`` - 1 calls; more than ``max_calls`` truncate.

    The tool's latency has median ``wait_median_s``: lognormal with ``wait_sigma`` (standard deviation of its
    logarithm), or Pareto with exponent 1 / ``wait_sigma``; at most ``wait_max_s``. Draws are functions of (seed,
    trajectory, turn).
    """

    digits: int = 2
    terms: int = 2
    operators: tuple[Operator, ...] = ("+", "-", "*")
    max_calls: int = 4
    wait_median_s: float = 0.1
    wait_sigma: float = 1.0
    wait_max_s: float = 30.0
    wait_law: Literal["lognormal", "pareto"] = "lognormal"
    held_out: float = 0.1

    alphabet = "0123456789+-*=[]>?"
    salt: ClassVar[str] = "tool-agent"
    eval_stream: ClassVar[int] = 0xE7A2

    def __post_init__(self) -> None:
        if not 1 <= self.digits <= 4:
            raise ConfigError(f"env.digits = {self.digits}: must be 1 to 4")
        if self.terms < 2 or self.max_calls < self.terms - 1:
            raise ConfigError(
                f"env.terms = {self.terms} needs {self.terms - 1} calls (at least 1); env.max_calls = {self.max_calls}"
            )
        if self.digits * self.terms > 12:
            raise ConfigError(f"env.digits x env.terms = {self.digits * self.terms}: the tool takes at most 12 digits")
        if not self.operators:
            raise ConfigError("env.operators is empty: name at least one of +, -, *")
        if self.wait_median_s < 0 or self.wait_sigma < 0 or self.wait_max_s < 0:
            raise ConfigError(
                "env.wait_median_s, wait_sigma and wait_max_s are seconds or shapes: none may be negative"
            )
        self.check_held_out()
        self._low = 10 ** (self.digits - 1) if self.digits > 1 else 0
        self._span = 10**self.digits - self._low
        self.verifier: Verifier | None = None

    def bind(self, tokenizer: LightTokenizer, seed: int) -> None:
        """Give the tokenizer and the seed of the task order."""
        self.tokenizer = tokenizer
        self.seed = seed
        self._stop = (*tokenizer.eos_ids, *tokenizer.ids_containing("]"))

    def use_verifier(self, verifier: Verifier) -> None:
        """Score the final answer with ``verifier`` instead of exact equality."""
        self.verifier = verifier

    @property
    def epoch_size(self) -> int | None:
        """A generator has no epochs."""
        return None

    def sample_problem(self, *counters: int) -> str:
        """Terms with operators between them, each from a counter of its own."""
        parts = [str(self._low + mix(*counters, 0) % self._span)]
        for k in range(1, self.terms):
            bits = mix(*counters, k)
            parts.append(self.operators[bits % len(self.operators)])
            parts.append(str(self._low + (bits >> 8) % self._span))
        return "".join(parts)

    def task_of(self, index: int, problem: str) -> Task:
        """The prompt is the problem and ``=``; the answer is that of the last call."""
        return Task(index, self.tokenizer.encode_prompt(problem + "="), steps(problem)[-1][1], {"problem": problem})

    async def rollout(self, client: Client, task: Task) -> Trajectory:
        """Turns until an answer without a call; only the answer is scored, and the tool's tokens never train."""
        transcript = client.transcript()
        transcript.observe(task.prompt)
        for turn in range(self.max_calls + 1):
            completion = await client.generate(transcript, stop=self._stop)
            text = self._written(completion.tokens)
            if completion.finish != Finish.STOP:
                return self._cut(transcript, "token limit")
            if "]" not in text:
                result = await self._score(client, task, text)
                return transcript.finish(result.reward, info=result.info)
            await client.sleep(self.latency_s(client.uniform(turn)), "tool")
            transcript.observe(self.tokenizer.encode_inside(calculate(text)))
        return self._cut(transcript, f"more than {self.max_calls} calls")

    def _written(self, tokens: Ints) -> str:
        """What the policy wrote, special tokens too, without the end of its turn."""
        ended = len(tokens) > 0 and int(tokens[-1]) in self.tokenizer.eos_ids
        return self.tokenizer.decode(tokens[:-1] if ended else tokens, special=True)

    def _cut(self, transcript: Transcript, why: str) -> Trajectory:
        return transcript.finish(0.0, terminated=False, truncated=True, info={"truncated_by": why})

    async def _score(self, client: Client, task: Task, text: str) -> Score:
        if self.verifier is None:
            return normalize(text.strip() == task.answer)
        return await score(self.verifier, client, text, task.answer, task.info)

    def latency_s(self, uniform: float) -> float:
        """The tool's latency at this quantile: its median at 0.5."""
        if self.wait_law == "lognormal":
            wait = self.wait_median_s * math.exp(self.wait_sigma * _NORMAL.inv_cdf(uniform))
        else:
            wait = self.wait_median_s * (2.0 * (1.0 - uniform)) ** -self.wait_sigma
        return min(wait, self.wait_max_s)

    def demonstration(self, index: int) -> tuple[list[int], list[bool]]:
        """Training task ``index`` played perfectly: (tokens, mask), the tool's tokens unmasked."""
        task = self.task(index)
        tokens = task.prompt.tolist()
        mask = [False] * len(tokens)
        for call, value in steps(task.info["problem"]):
            for text, policy in ((f"[{call}]", True), (f"{value}>", False)):
                ids = self.tokenizer.encode_inside(text).tolist()
                tokens += ids
                mask += [policy] * len(ids)
        answer = [*self.tokenizer.encode_inside(task.answer).tolist(), *self.tokenizer.eos_ids[:1]]
        return tokens + answer, mask + [True] * len(answer)

    def text(self, trajectory: Trajectory) -> str:
        """The whole trajectory, special tokens shown."""
        return self.tokenizer.decode(trajectory.tokens, special=True)


def steps(problem: str) -> list[tuple[str, str]]:
    """The calls that solve ``problem`` from left to right, each with its value."""
    parts = re.findall(r"\d+|[-+*]", problem)
    value, out = parts[0], []
    for operator, operand in zip(parts[1::2], parts[2::2], strict=True):
        call = f"{value}{operator}{operand}"
        value = calculate(f"[{call}]")[:-1]
        out.append((call, value))
    return out


def calculate(text: str) -> str:
    """What the tool answers to the last call in ``text``; a malformed one is refused, never an exception."""
    calls = _CALL.findall(text)
    return f"{_value(calls[-1])}>" if calls else REFUSED


def _value(call: str) -> int:
    sign = -1 if call.startswith("-") else 1
    left, operator, right = re.fullmatch(r"-?(\d+)([-+*])(-?\d+)", call).groups()  # type: ignore[union-attr]
    a, b = sign * int(left), int(right)
    return a + b if operator == "+" else a - b if operator == "-" else a * b
