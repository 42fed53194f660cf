from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from env_clients import ScriptedClient

import foreign
from stretto.envs.arithmetic import Arithmetic
from stretto.envs.data import Data
from stretto.envs.gym import ReasoningGym
from stretto.envs.tool import ToolAgent
from stretto.kernel.errors import ConfigError, DataError
from stretto.models.tokenizer import LightTokenizer, light_tokenizer

CHAT = [{"role": "user", "content": "7 * 6?"}]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LightTokenizer:
    """Adds BOS to a text and has no chat template."""
    return light_tokenizer(foreign.byte_level(tmp_path_factory.mktemp("plain")))


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> LightTokenizer:
    return light_tokenizer(foreign.byte_level(tmp_path_factory.mktemp("chatty"), chat_template=foreign.CHATML))


def data(tmp_path: Path, tokenizer: LightTokenizer, *rows: Any, **options: Any) -> Data:
    file = tmp_path / "rows.jsonl"
    rows = tuple(row if isinstance(row, dict) else {"prompt": row, "answer": "42"} for row in rows)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = Data(str(file), eval_fraction=0, **options)
    env.bind(tokenizer, 0)
    return env


def prompt(env: Any) -> str:
    return env.tokenizer.decode(env.task(0).prompt, special=True)


def test_every_environments_prompt_begins_as_the_tokenizer_begins_a_text(tmp_path: Path, plain: LightTokenizer) -> None:
    envs = [data(tmp_path, plain, "7 * 6?"), Arithmetic(), ToolAgent(), ReasoningGym("chain_sum")]
    for env in envs:
        env.bind(plain, 0)
        assert [prompt(env).count(t) for t in ("<s>", "</s>")] == [1, 0]
        tokens, mask = env.demonstration(0)
        assert plain.decode(tokens, special=True).startswith("<s>")
        assert not mask[0]
    assert prompt(data(tmp_path, plain, "7?", add_special_tokens="none")) == "7?"
    assert prompt(data(tmp_path, plain, "<s>7?")) == "<s>7?"
    with_end = light_tokenizer(foreign.byte_level(tmp_path / "end", "<s> $A </s>"))
    assert prompt(data(tmp_path, with_end, "7?")) == "<s>7?"
    assert prompt(data(tmp_path, with_end, "7?", add_special_tokens="all")) == "<s>7?</s>"


def test_messages_texts_and_system_lines_become_one_chat(tmp_path: Path, chatty: LightTokenizer) -> None:
    opened = "<|im_start|>assistant\n"
    user = "<|im_start|>user\n7 * 6?<|im_end|>\n"
    system = "<|im_start|>system\nBe brief.<|im_end|>\n"
    assert prompt(data(tmp_path, chatty, CHAT)) == prompt(data(tmp_path, chatty, "7 * 6?")) == user + opened
    assert prompt(data(tmp_path, chatty, CHAT, system="Be brief.")) == system + user + opened
    own = [{"role": "system", "content": "Be brief."}, *CHAT]
    assert prompt(data(tmp_path, chatty, own, system="Not this.")) == system + user + opened
    assert prompt(data(tmp_path, chatty, "7 * 6?", chat=False)) == "<s>7 * 6?"
    begun = [*CHAT, {"role": "assistant", "content": "The"}]
    assert prompt(data(tmp_path, chatty, begun)) == user + opened + "The"
    closed = data(tmp_path, chatty, begun, continue_final_message=False)
    assert prompt(closed) == user + opened + "The<|im_end|>\n" + opened
    assert prompt(data(tmp_path, chatty, CHAT, add_generation_prompt=False)) == user
    parts = [{"role": "user", "content": [{"type": "text", "text": "7 * 6?"}], "name": None}]
    assert prompt(data(tmp_path, chatty, parts)) == user + opened
    assert prompt(data(tmp_path, chatty, CHAT, chat_template="{{ x }}!", chat_template_kwargs={"x": "7"})) == "7!"


@pytest.mark.parametrize(
    "messages",
    [[{"role": "user"}], [{"role": "user", "content": None}], [{"role": "user", "content": [{"type": "image"}]}],
     [{"content": "7"}], ["7"], [], {"role": "user", "content": "7"}, [{"role": "user", "content": 7}]],
)  # fmt: skip
def test_what_is_no_message_is_refused_with_its_line(tmp_path: Path, chatty: LightTokenizer, messages: Any) -> None:
    with pytest.raises(DataError, match=r"rows\.jsonl:2: 'prompt' must be a non-empty text, or a list of messages"):
        data(tmp_path, chatty, "7", {"prompt": messages, "answer": 1})


def test_a_call_of_a_tool_needs_no_content(tmp_path: Path, chatty: LightTokenizer) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    template = "{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls else m.content }}{% endfor %}"
    env = data(tmp_path, chatty, [*CHAT, call, {"role": "tool", "content": "1"}], chat_template=template)
    assert prompt(env) == '7 * 6?[{"function": {"name": "add", "arguments": {"a": 1}}}]1'


def test_a_row_that_the_template_refuses_is_found_before_training(tmp_path: Path, chatty: LightTokenizer) -> None:
    strict = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + foreign.CHATML
    odd = [{"role": "system", "content": "Hi"}, *CHAT]
    env = data(tmp_path, chatty, CHAT, "8?", "9?", odd, chat_template=strict)
    with pytest.raises(DataError, match=r"rows\.jsonl:4: .*\(system, user\): TemplateError: no system role"):
        env.check_prompts(10_000)
    with pytest.raises(DataError, match=r"rows\.jsonl:1: .*system, user.*no system role"):
        data(tmp_path, chatty, "8?", chat_template=strict, system="Hi").check_prompts(10_000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"system": "x"}, r"env\.system needs a chat template"),
        ({"chat_template_kwargs": {"x": 1}}, r"env\.chat_template_kwargs needs a chat template"),
        ({"tools": [{"type": "function"}]}, r"env\.tools needs a chat template"),
        ({"continue_final_message": False}, r"env\.continue_final_message needs"),
        ({"add_generation_prompt": False}, r"env\.add_generation_prompt needs"),
        ({"chat": True}, r"env\.chat = true, but .* set env\.chat_template to a Jinja file"),
        ({"chat": False, "chat_template": "{{ x }}"}, r"env\.chat_template needs"),
        ({"chat_template": "{{ x }}", "add_special_tokens": "all"}, r"env\.add_special_tokens = 'all'"),
        ({"chat_template": "{{ x }}", "chat_template_kwargs": {"y": 1}}, "doesn't read it"),
        ({"chat_template": "none.jinja"}, "no such file"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    tmp_path: Path, plain: LightTokenizer, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        data(tmp_path, plain, "7", **options)
    env = ReasoningGym("chain_sum", **options)
    with pytest.raises(ConfigError, match=message):
        env.bind(plain, 0)


def test_control_tokens_in_rows_are_said_or_split(tmp_path: Path, chatty: LightTokenizer) -> None:
    bad = [{"role": "user", "content": "7<|im_end|>"}]
    env = data(tmp_path, chatty, CHAT, bad)
    (note,) = env.check_prompts(10_000)
    assert note.startswith("1 row(s) spell out control tokens (<|im_end|> in ")
    split = data(tmp_path, chatty, bad, split_special_tokens=True)
    assert split.check_prompts(10_000) == []
    end = chatty.backend.token_to_id("<|im_end|>")
    assert split.task(0).prompt.tolist().count(end) == 1
    assert data(tmp_path, chatty, bad).task(0).prompt.tolist().count(end) == 2


def test_control_tokens_stay_text_where_the_tokenizers_files_ask_for_it(tmp_path: Path) -> None:
    light = light_tokenizer(foreign.byte_level(tmp_path / "t", split_special_tokens=True))
    end = light.backend.token_to_id("</s>")
    for given, count in ((None, 0), (True, 0), (False, 1)):
        env = data(tmp_path, light, "7</s>", split_special_tokens=given)
        assert env.task(0).prompt.tolist().count(end) == count
        assert light.decode(env.task(0).prompt, special=True) == "<s>7</s>"


@dataclass(frozen=True)
class Read:
    """Keeps what a reward is given."""

    seen: list[Any]
    cheap = True

    def __call__(self, text: str, answer: Any, info: Mapping[str, Any]) -> float:
        self.seen.append((text, answer, dict(info)))
        return 1.0


def given(env: Any, tokenizer: LightTokenizer, written: str) -> Any:
    """(text, answer, info) that a reward gets for what the policy wrote."""
    seen: list[Any] = []
    env.use_verifier(Read(seen))
    ids = tokenizer.encode(written).tolist()
    stop = [tokenizer.backend.token_to_id(t) for t in ("</s>", "?")]
    asyncio.run(env.rollout(ScriptedClient([ids], eos=stop), env.task(0)))
    return seen[0]


def test_a_reward_reads_the_special_tokens_that_the_policy_wrote_but_not_the_stop(
    tmp_path: Path, plain: LightTokenizer
) -> None:
    written = "<think>7*6</think>42"
    for end in ("</s>", "?", ""):
        assert given(data(tmp_path, plain, "7"), plain, written + end)[0] == written
        assert given(data(tmp_path, plain, "7", include_stop=True), plain, written + end)[0] == written + end
    assert given(data(tmp_path, plain, "7", skip_special_tokens=True), plain, written + "</s>")[0] == "7*642"
    arithmetic = Arithmetic()
    arithmetic.bind(plain, 0)
    assert given(arithmetic, plain, written + "</s>")[0] == written
    tool = ToolAgent()
    tool.bind(plain, 0)
    assert given(tool, plain, written + "</s>")[0] == written


def test_an_exact_answer_counts_however_it_was_cut_into_tokens(plain: LightTokenizer) -> None:
    env = Arithmetic()
    env.bind(plain, 0)
    task = env.task(0)
    split = [int(plain.encode(digit)[0]) for digit in str(task.answer)]
    whole = plain.encode(str(task.answer)).tolist()
    end = plain.eos_ids[0]
    for ids, reward in ((split, 1.0), (whole, 1.0), ([*split, split[0]], 0.0), ([split[0], end - 1, *split[1:]], 0.0)):
        assert asyncio.run(env.rollout(ScriptedClient([[*ids, end]], eos=[end]), task)).reward == reward


def test_columns_of_any_name_reach_the_reward_as_they_are(tmp_path: Path, plain: LightTokenizer) -> None:
    names = ["where", "row", "index", "id", "ids", "info", "text", "messages", "group", "reward", "prompt", "answer",
             "item", "problem", "expected", "task", "trajectory", "reward_absent", "truncated_by"]  # fmt: skip
    columns: dict[str, Any] = {name: [name, {"n": k}, None] for k, name in enumerate(names)}
    row = {"question": "7", "result": "42", **columns}
    env = data(tmp_path, plain, row, prompt_column="question", answer_column="result")
    text, answer, info = given(env, plain, "4</s>")
    assert (text, answer) == ("4", "42")
    assert info == columns
    del row["where"]
    env = data(tmp_path, plain, row, prompt_column="question", answer_column="result")
    where = str(tmp_path / "rows.jsonl") + ":1"
    assert given(env, plain, "4</s>")[2] == {**columns, "where": where}
