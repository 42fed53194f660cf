"""Any reasoning-gym data set by name (https://github.com/open-thought/reasoning-gym).

The generator's items are addressed by counters. A tenth of all questions (by a hash of the question's text) is
held out: training rejects them, evaluation samples nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import orjson

from stretto.data.counter import mix, text_share
from stretto.data.trajectory import Ints
from stretto.envs.base import ENVIRONMENTS, LateClient, Task
from stretto.envs.numbers import find, only_number
from stretto.envs.prompts import PromptOptions
from stretto.envs.single_turn import SingleTurn
from stretto.envs.verifiers import Score, normalize, score
from stretto.kernel.errors import ConfigError, DataError, did_you_mean
from stretto.models.tokenizer import LightTokenizer

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_EVAL_STREAM = 0xE7A3
_ITEMS = 1 << 30
_MAX_ATTEMPTS = 1000
_LOOKED_AT = 8


@ENVIRONMENTS.register("reasoning-gym")
@dataclass
class ReasoningGym(PromptOptions, SingleTurn):
    """``dataset``: its name; ``options``: its own options; ``suffix``: appended to each question.

    ``extract``: what of the completion is the answer: the whole ``text``, its last ``number`` (as it stands there,
    without separators; the whole text where the right answer is no number), or what stands in the last ``<answer>``
    tag. Scoring is the data set's own, in a killable process unless it is the library's default comparison.
    """

    dataset: str
    options: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""
    extract: Literal["text", "number", "tag"] = "text"
    partial_credit: bool = False
    held_out: float = 0.1

    scoring_imports = ("stretto.envs.gym", "reasoning_gym")

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise ConfigError(f"env.held_out = {self.held_out}: must lie between 0 and 1")
        self._options = orjson.dumps(self.options, option=orjson.OPT_SORT_KEYS)
        self._source = data_set(self.dataset, self._options)
        self._plain = has_default_score(self._source)
        if self.extract == "number":
            answers = [str(self._source[item]["answer"]) for item in range(_LOOKED_AT)]
            if not any(map(only_number, answers)):
                raise ConfigError(
                    f"env.extract = 'number': the answers of data set {self.dataset!r} are no numbers (such as "
                    f"{answers[0][:40]!r}); use 'text' or 'tag'"
                )

    def bind(self, tokenizer: LightTokenizer, seed: int) -> None:
        """Give the tokenizer and the seed of the task order."""
        super().bind(tokenizer, seed)
        self.choose(tokenizer)

    def _is_held_out(self, question: str) -> bool:
        return text_share(question, "reasoning-gym") < self.held_out

    def _task(self, index: int, item: int, entry: Mapping[str, Any]) -> Task:
        answer = entry["answer"]  # None: many are right, and only the data set's own scoring knows
        prompt = self.prompt_ids(entry["question"] + self.suffix)
        return Task(index, prompt, None if answer is None else str(answer), {"item": item})

    def task(self, index: int) -> Task:
        """Training question ``index``: a function of (seed, index); never a held-out one."""
        for attempt in range(_MAX_ATTEMPTS):
            item = mix(self.seed, index, attempt) % _ITEMS
            entry = self._source[item]
            if not self._is_held_out(entry["question"]):
                return self._task(index, item, entry)
        raise DataError(
            f"env.dataset = {self.dataset!r} has too few questions: all {_MAX_ATTEMPTS} sampled are held out"
        )

    def eval_tasks(self, n: int) -> list[Task]:
        """At most n distinct held-out questions, for every seed the same."""
        found: dict[str, Task] = {}
        for attempt in range(30 * n + _MAX_ATTEMPTS):
            if len(found) >= n:
                break
            item = mix(_EVAL_STREAM, attempt) % _ITEMS
            entry = self._source[item]
            if self._is_held_out(entry["question"]) and entry["question"] not in found:
                found[entry["question"]] = self._task(-1 - len(found), item, entry)
        return list(found.values())

    def answer_of(self, text: str, right: str | None) -> str:
        """What of a completion counts as its answer (``extract``), handed on as it is written, never through a float.
        A number in plain digits that equals the ``right`` one is handed on as that writes it (0.50 for 0.5)."""
        if self.extract == "number" and right is not None and (expected := only_number(right)):
            if re.search(rf"(?<![\w.,/^-]){re.escape(right)}(?![\w/^]|[.,]\d)[^\w]*\Z", text):
                return right  # letter by letter, last: digits of another base may look like an exponent
            found = find(text)
            if found is None:
                return ""
            return right if found.plain and expected.plain and found.value == expected.value else found.written
        if self.extract == "tag":
            return text.rpartition("<answer>")[2].partition("</answer>")[0].strip() if "<answer>" in text else ""
        return text.strip()

    async def own_score(self, client: LateClient, task: Task, tokens: Ints) -> Score:
        """The data set's score of the answer; without ``partial_credit`` only a full one counts."""
        answer = self.answer_of(self.written(tokens), task.answer)
        if answer == task.answer:  # never so if that is None
            return Score(1.0)
        if self._plain:
            entry = {"answer": task.answer}
            result = normalize(self._source.score_answer(answer, entry), f"reward of data set {self.dataset!r}")
        else:
            result = await score(LibraryScore(self.dataset, self._options), client, answer, task.info["item"], {})
        if result.reward is not None and not self.partial_credit:
            return Score(float(result.reward >= 1.0))
        return result


@dataclass(frozen=True)
class LibraryScore:
    """``score_answer`` of a data set, for a scoring process; ``answer`` is the item's number."""

    dataset: str
    options: bytes
    cheap = False

    @property
    def path(self) -> str:
        """For messages."""
        return f"of data set {self.dataset!r}"

    def __call__(self, text: str, answer: object, info: Mapping[str, object]) -> object:
        source = data_set(self.dataset, self.options)
        return source.score_answer(text, source[answer])


@lru_cache(maxsize=16)
def data_set(name: str, options: bytes) -> ProceduralDataset:
    """The library's generator, addressed by item number; ``ConfigError`` for an unknown name or option."""
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError("env.name = 'reasoning-gym' needs: pip install reasoning-gym") from error
    if name not in DATASETS:
        raise ConfigError(f"env.dataset: unknown data set {name!r}; {did_you_mean(name, DATASETS)}")
    try:
        return reasoning_gym.create_dataset(name, seed=0, size=_ITEMS, **orjson.loads(options))
    except (TypeError, AssertionError, ValueError) as error:
        raise ConfigError(f"env.options of data set {name!r}: {error}") from error


def has_default_score(source: ProceduralDataset) -> bool:
    """Whether the data set compares texts as the library's base class does."""
    from reasoning_gym.dataset import ProceduralDataset

    return type(source).score_answer is ProceduralDataset.score_answer
