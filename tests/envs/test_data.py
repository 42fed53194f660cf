from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from env_clients import ScriptedClient

from stretto.config.schema import RunConfig
from stretto.envs.build import build_environment
from stretto.envs.data import Data
from stretto.kernel.errors import ConfigError, DataError
from stretto.models.tokenizer import LightTokenizer


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return str(path)


def questions(count: int) -> list[dict[str, Any]]:
    return [{"question": f"{i}+1=", "target": i + 1, "level": i % 3} for i in range(count)]


def make(tmp_path: Path, chars: LightTokenizer, rows: list[Any], seed: int = 0, **options: Any) -> Data:
    path = write(tmp_path / "rows.jsonl", rows)
    env = Data(path, prompt_column="question", answer_column="target", **options)
    env.bind(chars, seed)
    return env


def test_every_epoch_visits_each_training_row_exactly_once_in_an_order_of_its_own(
    tmp_path: Path, chars: LightTokenizer
) -> None:
    env = make(tmp_path, chars, questions(30))
    size = env.epoch_size
    assert size == 27
    epochs = [[env.task(e * size + i).info["where"] for i in range(size)] for e in range(3)]
    assert all(Counter(e) == Counter(epochs[0]) and len(set(e)) == size for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = make(tmp_path, chars, questions(30))
    assert [again.task(i).info["where"] for i in reversed(range(size))] == epochs[0][::-1]
    other = make(tmp_path, chars, questions(30), seed=1)
    assert [other.task(i).info["where"] for i in range(size)] != epochs[0]


def test_held_out_prompts_never_train_even_when_a_prompt_repeats(tmp_path: Path, chars: LightTokenizer) -> None:
    env = make(tmp_path, chars, questions(20) * 3, eval_fraction=0.25)
    held_out = {chars.decode(t.prompt) for t in env.eval_tasks(100)}
    trained = {chars.decode(env.task(i).prompt) for i in range(env.epoch_size or 0)}
    assert (len(held_out), len(trained)) == (5, 15)
    assert not held_out & trained
    own = write(tmp_path / "eval.jsonl", questions(20)[:4])
    env = make(tmp_path, chars, questions(20), eval_path=own)
    assert (len(env.eval_tasks(100)), env.epoch_size) == (4, 16)


def test_a_rollout_is_scored_and_keeps_the_other_columns(tmp_path: Path, chars: LightTokenizer) -> None:
    env = make(tmp_path, chars, questions(20))
    task = env.task(3)
    assert set(task.info) == {"level", "where"}
    right = [*chars.encode(str(task.answer)).tolist(), 1]
    assert asyncio.run(env.rollout(ScriptedClient([right]), task)).reward == 1.0
    assert asyncio.run(env.rollout(ScriptedClient([[2, 1]]), task)).reward == 0.0


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", r"rows\.jsonl:3: not JSON .*each line must be one object"),
        ("[1, 2]", r"rows\.jsonl:3: a JSON list"),
        ({"question": "1+1="}, r"rows\.jsonl:3: no column 'target' .*env\.answer_column"),
        ({"prompt": "1+1=", "target": 2}, r"rows\.jsonl:3: no column 'question' \(columns: prompt, target\)"),
        ({"question": "", "target": 2}, r"rows\.jsonl:3: 'question' must be a non-empty text"),
        ({"question": "\ud800", "target": 2}, r"rows\.jsonl:3: .*\\ud800 is half of a surrogate pair"),
        ({"question": "1", "target": 2, "hint": "\udfff"}, r"rows\.jsonl:3: .*\\udfff is half of a surrogate pair"),
        ({"question": [{"role": "user"}], "target": 2}, r"rows\.jsonl:3: .*list of messages"),
        ({"question": "1+1=", "target": None}, r"rows\.jsonl:3: 'target' is empty"),
        ({"question": [{"role": "user", "content": "1"}], "target": 1}, r"rows\.jsonl:3: chat messages, but no chat"),
    ],
)
def test_a_malformed_row_names_file_line_and_remedy(
    tmp_path: Path, chars: LightTokenizer, row: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make(tmp_path, chars, [*questions(2), row])


def test_missing_empty_and_wrong_sources_are_clear_errors(tmp_path: Path, chars: LightTokenizer) -> None:
    with pytest.raises(DataError, match="no such file"):
        Data(str(tmp_path / "none.jsonl"))
    with pytest.raises(DataError, match="holds no rows"):
        Data(write(tmp_path / "empty.jsonl", [""]))
    with pytest.raises(DataError, match="not a data set directory"):
        Data(str(tmp_path))
    with pytest.raises(DataError, match="no training row"):
        Data(write(tmp_path / "a.jsonl", [{"prompt": "1", "answer": 1}]), eval_path=str(tmp_path / "a.jsonl"))
    with pytest.raises(ConfigError, match="no chat template"):
        make(tmp_path, chars, questions(4), chat=True)
    env = make(tmp_path, chars, questions(4), max_prompt_tokens=2)
    with pytest.raises(DataError, match=r"rows\.jsonl:\d: prompt of 4 tokens, more than env\.max_prompt_tokens = 2"):
        env.task(0)
    with pytest.raises(DataError, match=r"rows\.jsonl:\d: the tokenizer has no token for 'é'"):
        make(tmp_path, chars, [{"question": "é", "target": 1}]).task(0)


def test_a_byte_order_mark_and_whole_surrogate_pairs_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "1", "answer": 1}\n{"prompt": "\\ud83d\\ude00", "answer": 1}\n')
    assert {row.prompt for row in Data(str(path), eval_fraction=0)._train} == {"1", "\U0001f600"}


def test_prompts_that_do_not_fit_are_found_before_training(tmp_path: Path, chars: LightTokenizer) -> None:
    rows = [*questions(4), {"question": "1" * 9, "target": 1}]
    env = make(tmp_path, chars, rows, eval_fraction=0)
    env.check_prompts(9)
    with pytest.raises(DataError, match=r"rows\.jsonl:5: prompt of 9 tokens, and engine\.max_model_len = 9 must hold"):
        env.check_prompts(8)
    with pytest.raises(DataError, match=r"rows\.jsonl:5: prompt of 9 tokens, more than env\.max_prompt_tokens = 8"):
        make(tmp_path, chars, rows, eval_fraction=0, max_prompt_tokens=8).check_prompts(100)
    with pytest.raises(DataError, match=r"rows\.jsonl:5: the tokenizer has no token for 'é'"):
        make(tmp_path, chars, [*questions(4), {"question": "é", "target": 1}]).check_prompts(100)


def test_a_data_set_directory_reads_like_the_file(tmp_path: Path, chars: LightTokenizer) -> None:
    from datasets import Dataset, DatasetDict

    Dataset.from_list(questions(12)).save_to_disk(tmp_path / "disk")
    env = Data(str(tmp_path / "disk"), prompt_column="question", answer_column="target")
    env.bind(chars, 0)
    file = make(tmp_path, chars, questions(12))
    assert [env.task(i).prompt.tolist() for i in range(11)] == [file.task(i).prompt.tolist() for i in range(11)]
    Dataset.from_list([]).save_to_disk(tmp_path / "nothing")
    with pytest.raises(DataError, match=r"env\.path = '.*nothing': holds no rows"):
        Data(str(tmp_path / "nothing"))
    DatasetDict({"train": Dataset.from_list(questions(2))}).save_to_disk(tmp_path / "splits")
    with pytest.raises(DataError, match="splits train"):
        Data(str(tmp_path / "splits"))


@pytest.mark.parametrize(
    ("reward", "answer", "message"),
    [
        ("math-verify", "Paris", "is no mathematics"),
        ("math-verify", "\\frac{1}{", "braces"),
        ("numeric", "none", "holds no number"),
        ("numeric", True, "no numbers"),
        ("regex", "(", "no regular expression"),
        ("exact", {"a": 1}, "no text or number"),
        (None, [], "empty list"),
    ],
)
def test_an_answer_that_its_reward_cannot_compare_is_refused_with_its_row(
    tmp_path: Path, reward: str | None, answer: Any, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"{i}", "answer": "1"} for i in range(4)] + [{"prompt": "bad", "answer": answer}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"reward": reward, "env": {"name": "data", "path": str(path)}}
    with pytest.raises(DataError, match=rf"rows\.jsonl:5: 'answer' is no answer .*{message}"):
        build_environment(RunConfig.model_validate(settings))
    if reward in ("numeric", "math-verify"):
        build_environment(RunConfig.model_validate({**settings, "reward_options": {"unreadable": "absent"}}))


@pytest.mark.parametrize("bad", [1, 2])
@pytest.mark.parametrize("position", range(4))
def test_rows_with_an_answer_that_cannot_be_compared_are_counted_once(tmp_path: Path, bad: int, position: int) -> None:
    rows = [{"prompt": f"{i}", "answer": "none" if (i - position) % 4 < bad else "1"} for i in range(4)]  # one held out
    config = RunConfig.model_validate(
        {"reward": "numeric", "env": {"name": "data", "path": write(tmp_path / "rows.jsonl", rows)}}
    )
    with pytest.raises(DataError) as caught:
        build_environment(config)
    assert ("(2 rows are like this)" in str(caught.value)) == (bad == 2)
    assert ("rows are like this" in str(caught.value)) == (bad == 2)
