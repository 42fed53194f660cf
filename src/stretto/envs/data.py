"""Own data: a JSONL file, or a Hugging Face data set on disk, with mapped columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
import xxhash

from stretto.data.counter import permutation, text_share
from stretto.data.trajectory import Ints
from stretto.envs.base import ENVIRONMENTS, Task
from stretto.envs.graders import Exact
from stretto.envs.prompts import Message, PromptOptions, as_messages
from stretto.envs.single_turn import SingleTurn
from stretto.kernel.errors import ConfigError, DataError
from stretto.kernel.jsonl import read_jsonl
from stretto.models.tokenizer import LightTokenizer

_PLAIN = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
_EXAMPLES = Path(__file__).parent.parent / "recipes" / "data"


@dataclass(frozen=True, slots=True)
class Row:
    """One checked row; ``where`` names its file and line."""

    prompt: str | list[Message]
    answer: object
    info: dict[str, object]
    where: str

    @property
    def key(self) -> str:
        """The prompt as text: equal prompts fall on the same side of the split."""
        return self.prompt if isinstance(self.prompt, str) else json.dumps(self.prompt, sort_keys=True, default=str)

    @property
    def shape(self) -> str:
        """What a chat template may refuse: who speaks when, and with what keys."""
        return "" if isinstance(self.prompt, str) else repr([(m["role"], sorted(m)) for m in self.prompt])


@ENVIRONMENTS.register("data")
@dataclass
class Data(PromptOptions, SingleTurn):
    """``path``: JSONL file or ``save_to_disk`` directory (``stretto:NAME``: an example that comes with Stretto).

    A prompt is a text or a list of messages. ``eval_path``: its own evaluation file; without it ``eval_fraction`` of
    the distinct prompts is held out. ``max_prompt_tokens`` 0: no limit. A reward's ``info`` holds the other columns as
    they are, and the row's file and line as ``where`` unless a column has that name.
    """

    path: str
    prompt_column: str = "prompt"
    answer_column: str = "answer"
    eval_path: str | None = None
    eval_fraction: float = 0.1
    max_prompt_tokens: int = 0

    def __post_init__(self) -> None:
        if self.eval_path is None and not 0 <= self.eval_fraction < 1:
            raise ConfigError(f"env.eval_fraction = {self.eval_fraction}: must be at least 0 and below 1")
        rows = self._rows = list(self._read(self.path, "env.path"))
        if self.eval_path is not None:
            self._eval = list(self._read(self.eval_path, "env.eval_path"))
            held_out = {row.key for row in self._eval}
        else:
            keys = sorted({row.key for row in rows}, key=lambda key: (text_share(key, "data"), key))
            count = min(max(1, round(self.eval_fraction * len(keys))), len(keys) - 1) if self.eval_fraction else 0
            held_out = set(keys[:count])
            self._eval = list({row.key: row for row in rows if row.key in held_out}.values())
        self._room: int | None = None
        self._train = [row for row in rows if row.key not in held_out]
        if not self._train:
            raise DataError(f"{self.path}: no training row is left after the evaluation rows were taken out")

    @property
    def idle(self) -> dict[str, str]:
        """Options without effect beside others, with the reason."""
        return {"eval_fraction": "env.eval_path holds the evaluation rows"} if self.eval_path is not None else {}

    def bind(self, tokenizer: LightTokenizer, seed: int) -> None:
        """Give the tokenizer and the seed of the order; checks that prompts can be rendered."""
        super().bind(tokenizer, seed)
        self.choose(tokenizer)
        if not self.uses_chat:
            for row in (*self._train, *self._eval):
                if not isinstance(row.prompt, str):
                    self._ids(row)

    def check_prompts(self, room: int) -> list[str]:
        """Raise ``DataError`` for the first row whose prompt can't be encoded or is longer than ``room`` tokens (what
        ``engine.max_model_len`` leaves) or ``max_prompt_tokens``. Rows that can't be too long aren't encoded, but for
        one of each shape: hardly any tokenizer makes more tokens than bytes. Returns what is worth saying."""
        self._room = room
        limit = min(room, self.max_prompt_tokens or room)
        around = len(self._ids(self._train[0])) if self.uses_chat else 8
        shapes: set[str] = set()
        spelt: list[tuple[Row, list[str]]] = []
        for row in (*self._train, *self._eval):
            if self.tokenizer.by_character or row.shape not in shapes or len(row.key.encode()) + around > limit:
                self._ids(row)
                shapes.add(row.shape)
            if controls := self.spelt_controls(row.prompt):
                spelt.append((row, controls))
        if not spelt:
            return []
        row, controls = spelt[0]
        return [
            f"{len(spelt)} row(s) spell out control tokens ({', '.join(controls)} in {row.where}), and the model reads "
            "them as such; env.split_special_tokens = true keeps them text"
        ]

    def fingerprint(self, rows: int | None = None) -> dict[str, object]:
        """How many rows there are, and hashes of what the first ``rows`` (None: all) and the evaluation rows say."""
        held_out = _digest(self._eval)
        return {"rows": len(self._rows), "content": _digest(self._rows[:rows]), "training": len(self._train),
                "evaluation": held_out}  # fmt: skip

    def check_answers(self) -> None:
        """Raise ``DataError`` if the verifier (without one: exact comparison) can't use a row's expected answer."""
        verifier = Exact() if self.verifier is None else self.verifier
        check: Callable[[object], str] | None = getattr(verifier, "check", None)
        if check is None or getattr(verifier, "unreadable", "") == "absent":
            return
        # by place: an evaluation row that was taken out of the one file is among its rows, too
        bad = {row.where: why for row in (*self._rows, *self._eval) if (why := check(row.answer))}
        if bad:
            where, why = next(iter(bad.items()))
            raise DataError(
                f"{where}: {self.answer_column!r} is no answer that reward "
                f"{getattr(verifier, 'component_name', 'exact')!r} can compare: {why}"
                + (f" ({len(bad)} rows are like this)" if len(bad) > 1 else "")
                + (". reward_options.unreadable = 'absent' keeps such rows, which then train nothing"
                   if hasattr(verifier, "unreadable") else "")
            )  # fmt: skip

    @property
    def epoch_size(self) -> int | None:
        """Training rows."""
        return len(self._train)

    def _ids(self, row: Row) -> Ints:
        try:
            ids = self.prompt_ids(row.prompt)
        except DataError as error:
            raise DataError(f"{row.where}: {error}") from error
        if not len(ids):
            raise DataError(f"{row.where}: the tokenizer makes no token of {row.prompt!r}; remove the row")
        if self.max_prompt_tokens and len(ids) > self.max_prompt_tokens:
            raise DataError(
                f"{row.where}: prompt of {len(ids)} tokens, more than env.max_prompt_tokens = "
                f"{self.max_prompt_tokens}; shorten or remove the row, or raise the limit"
            )
        if self._room is not None and len(ids) > self._room:
            raise DataError(
                f"{row.where}: prompt of {len(ids)} tokens, and engine.max_model_len = {self._room + 1} must hold it "
                "and at least one new token; shorten or remove the row, or raise engine.max_model_len"
            )
        return ids

    def _task(self, index: int, row: Row) -> Task:
        return Task(index, self._ids(row), row.answer, {"where": row.where, **row.info})

    def task(self, index: int) -> Task:
        """Position ``index`` of the order: every epoch visits each row once, in a permutation of its own."""
        epoch, position = divmod(index, len(self._train))
        return self._task(index, self._train[int(permutation(self.seed, epoch, len(self._train))[position])])

    def eval_tasks(self, n: int) -> list[Task]:
        """The first n evaluation rows (fewer if there are fewer)."""
        return [self._task(-1 - i, row) for i, row in enumerate(self._eval[:n])]

    def _read(self, path: str, setting: str) -> Iterator[Row]:
        """Checked rows; ``DataError`` names file and line."""
        root = _EXAMPLES / path.removeprefix("stretto:") if path.startswith("stretto:") else Path(path)
        if root.is_dir():
            raw = _disk_rows(root)
        elif root.is_file():
            raw = _jsonl_rows(root)
        else:
            where = "" if root.is_absolute() else f" in {Path.cwd()}"
            raise DataError(f"{setting} = {path!r}: no such file or directory{where}")
        count = 0
        for where, values in raw:
            count += 1
            yield self._check(values, where)
        if not count:
            raise DataError(f"{setting} = {path!r}: holds no rows")

    def _check(self, values: Mapping[str, object], where: str) -> Row:
        for setting in ("prompt_column", "answer_column"):
            column = getattr(self, setting)
            if column not in values:
                raise DataError(
                    f"{where}: no column {column!r} (columns: {', '.join(sorted(values))}); "
                    f"set env.{setting} or add it to the row"
                )
        given, answer = values[self.prompt_column], values[self.answer_column]
        prompt = given if isinstance(given, str) else as_messages(given)
        if not prompt:
            raise DataError(
                f"{where}: {self.prompt_column!r} must be a non-empty text, or a list of messages "
                '{"role": ..., "content": ...}: contents are text, also as parts of type "text"'
            )
        if answer is None or (isinstance(answer, str) and not answer.strip()):
            raise DataError(f"{where}: {self.answer_column!r} is empty; fill it in or remove the row")
        info = {k: v for k, v in values.items() if k not in (self.prompt_column, self.answer_column)}
        return Row(prompt, answer, info, where)


def _digest(rows: list[Row]) -> str:
    """xxh3-128 of what these rows say, in their order; where they come from doesn't count."""
    digest = xxhash.xxh3_128()
    for row in rows:
        digest.update(orjson.dumps([row.prompt, row.answer, row.info], default=repr, option=_PLAIN))
    return digest.hexdigest()


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    for number, values in read_jsonl(path, torn=False, loads=_loads):
        yield f"{path}:{number}", values


def _loads(line: bytes) -> object:
    """With integers of any size, as answers may be. Half of a surrogate pair is legal JSON, but no text: it can't be
    encoded, hashed or logged."""
    values = json.loads(line.decode())
    if b"\\ud" in line.lower():
        try:
            json.dumps(values, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            bad = error.object[error.start : error.end].encode("unicode_escape").decode()
            raise ValueError(f"{bad} is half of a surrogate pair, no character; mend or remove the row") from None
    return values


def _disk_rows(path: Path) -> Iterator[tuple[str, Mapping[str, object]]]:
    try:
        from datasets import Dataset, load_from_disk
    except ImportError as error:
        raise DataError(f"{path}: reading a data set directory needs: pip install datasets") from error
    if _has_no_files(path):
        return
    try:
        data = load_from_disk(str(path))
    except Exception as error:
        raise DataError(f"{path}: not a data set directory (made by Dataset.save_to_disk): {error}") from error
    if not isinstance(data, Dataset):
        raise DataError(f"{path}: holds the splits {', '.join(data)}; give the directory of one, as {path / 'train'}")
    for number, values in enumerate(data):
        yield f"{path}: row {number}", dict(values)


def _has_no_files(path: Path) -> bool:
    """Whether this is a data set saved without rows, which the library writes but doesn't load."""
    try:
        return bool(json.loads((path / "state.json").read_text())["_data_files"] == [])
    except (OSError, ValueError, KeyError, TypeError):
        return False
