"""Files that people bring mean here what they mean to Transformers, and every text gives its ids whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer

import foreign
from stretto.kernel.errors import ConfigError, DataError
from stretto.models.resolve import check_vocabulary
from stretto.models.tokenizer import char_tokenizer, light_tokenizer
from stretto.run.checks import stop_ids

TEXT = "What is 7 * 6? The answer is 42"


def change(root: Path, **sections: Any) -> None:
    file = root / "tokenizer.json"
    description = json.loads(file.read_text())
    description["model"].update(sections.pop("model", {}))
    file.write_text(json.dumps({**description, **sections}))


TRUNCATION = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 64}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0,
           "pad_type_id": 0, "pad_token": "<s>"}  # fmt: skip


@pytest.mark.parametrize("kind", foreign.KINDS)
@pytest.mark.parametrize(
    "sections",
    [{"truncation": TRUNCATION}, {"truncation": {**TRUNCATION, "direction": "Left"}}, {"padding": PADDING},
     {"padding": {**PADDING, "strategy": "BatchLongest", "pad_to_multiple_of": 8}}],
    ids=["truncation", "left truncation", "padding", "padding to a multiple"],
)  # fmt: skip
def test_what_a_file_says_of_length_neither_cuts_nor_pads(tmp_path: Path, kind: str, sections: Any) -> None:
    root = foreign.KINDS[kind](tmp_path)
    expected = light_tokenizer(root).encode(TEXT).tolist()
    change(root, **sections)
    (root / "tokenizer_config.json").write_text(json.dumps({
        **json.loads((root / "tokenizer_config.json").read_text()), "model_max_length": 6, "padding_side": "left",
        "truncation_side": "left",
    }))  # fmt: skip
    light = light_tokenizer(root)
    light.full("a call of Transformers' own", truncation=True, max_length=3)
    assert light.encode(TEXT).tolist() == expected != []
    assert len(expected) > 6


@pytest.mark.parametrize("kind", foreign.KINDS)
def test_prompts_get_what_the_tokenizer_adds_in_front_and_all_is_what_transformers_gives(
    tmp_path: Path, kind: str
) -> None:
    light = light_tokenizer(foreign.KINDS[kind](tmp_path))
    full = AutoTokenizer.from_pretrained(tmp_path)
    start, end = full.bos_token_id, full.eos_token_id
    plain = full(TEXT, add_special_tokens=False)["input_ids"]
    assert light.encode(TEXT).tolist() == light.encode_prompt(TEXT, "none").tolist() == plain
    assert light.encode_prompt(TEXT).tolist() == [start, *plain]
    assert light.encode_prompt(TEXT, "all").tolist() == full(TEXT)["input_ids"]
    assert (light.encode_prompt(TEXT, "all")[-1] == end) == (kind == "wordpiece")
    begun = light.encode_prompt("<s>" + TEXT).tolist()
    assert begun.count(start) == 1, "no second BOS before one that the text spells out"
    assert begun == light.encode("<s>" + TEXT).tolist()


@pytest.mark.parametrize("single", [None, "<s> $A", "$A </s>", "<s> <s> $A </s> </s>"])
@pytest.mark.parametrize("settings", [{}, {"add_bos_token": True}, {"add_eos_token": True}, {"add_bos_token": False}])
def test_flags_and_templates_of_the_files_count_as_they_do_in_transformers(
    tmp_path: Path, single: str | None, settings: dict[str, Any]
) -> None:
    light = light_tokenizer(foreign.byte_level(tmp_path, single, **settings))
    expected = AutoTokenizer.from_pretrained(tmp_path)("12")["input_ids"]
    assert light.encode_prompt("12", "all").tolist() == expected
    assert light.encode_prompt("12").tolist() == expected[: expected.index(light.encode("12")[-1]) + 1]


def test_a_class_that_builds_its_own_pipeline_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    root = foreign.metaspace(tmp_path, tokenizer_class="LlamaTokenizer", add_prefix_space=False, legacy=False)
    light, full = light_tokenizer(root), AutoTokenizer.from_pretrained(root)
    for text in ("42", " 42\n", TEXT):
        assert light.encode_prompt(text, "all").tolist() == full(text)["input_ids"]
    raw = Tokenizer.from_file(str(root / "tokenizer.json"))
    assert light.encode("42").tolist() != raw.encode("42", add_special_tokens=False).ids, (
        "the file alone says otherwise"
    )


@pytest.mark.parametrize("kind", foreign.KINDS)
def test_text_inside_a_text_gets_no_blank_before_it(tmp_path: Path, kind: str) -> None:
    light = light_tokenizer(foreign.KINDS[kind](tmp_path))
    asked, result = light.encode_prompt("[7*6]"), light.encode_inside("42>")
    joined = light.decode([*asked.tolist(), *result.tolist()])
    assert joined == ("[ 7 * 6 ] 42 >" if kind == "wordpiece" else "[7*6]42>")
    assert light.encode_inside("").tolist() == []


def test_dropout_of_merges_is_off(tmp_path: Path) -> None:
    root = foreign.byte_level(tmp_path)
    expected = light_tokenizer(root).encode(TEXT).tolist()
    change(root, model={"dropout": 0.9})
    light = light_tokenizer(root)
    assert all(light.encode(TEXT).tolist() == expected for _ in range(5))


def test_decoding_keeps_every_byte_where_transformers_would_clean_up(tmp_path: Path) -> None:
    light = light_tokenizer(foreign.byte_level(tmp_path, clean_up_tokenization_spaces=True))
    text = "x , y . do n't  \n 日本 🙂"
    assert light.decode(light.encode_prompt(text)) == text


def test_end_tokens_come_from_whichever_file_names_them(tmp_path: Path) -> None:
    light = light_tokenizer(foreign.byte_level(tmp_path / "a"))
    end, turn = (light.backend.token_to_id(t) for t in ("</s>", "<|im_end|>"))
    assert light.eos_ids == (end,)
    root = foreign.byte_level(tmp_path / "b", eos_token=None)
    assert light_tokenizer(root).eos_ids == ()
    (root / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert light_tokenizer(root).eos_ids == (end,)
    (root / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": turn}))
    assert light_tokenizer(root).eos_ids == (end, turn)
    (root / "generation_config.json").write_text(json.dumps({"eos_token_id": [turn]}))
    assert light_tokenizer(root).eos_ids == (end, turn)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_broken_file_is_named(tmp_path: Path, name: str) -> None:
    root = foreign.byte_level(tmp_path)
    (root / name).write_text("{")
    with pytest.raises(DataError, match=str(root)):
        light_tokenizer(root)


def test_a_directory_without_settings_is_read_by_its_tokenizer_file(tmp_path: Path) -> None:
    root = foreign.byte_level(tmp_path)
    expected = light_tokenizer(root).encode_prompt(TEXT).tolist()
    (root / "tokenizer_config.json").unlink()
    light = light_tokenizer(root)
    assert (light.encode_prompt(TEXT).tolist(), light.eos_ids, light.pad_id) == (expected, (), None)


def test_a_text_that_needs_a_token_beyond_the_models_vocabulary_is_refused(tmp_path: Path) -> None:
    light = light_tokenizer(foreign.byte_level(tmp_path))
    image = light.backend.token_to_id("</think>")
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": image}))
    check_vocabulary(tmp_path, light)
    assert light.encode_prompt("<think>").tolist()[1:] == [image - 1]
    for encode in (light.encode, light.encode_prompt):
        with pytest.raises(DataError, match=rf"token '</think>' has id {image}, but .* ends at {image - 1}"):
            encode("12</think>")


def test_ids_beyond_the_tokenizers_own_decode_to_nothing(tmp_path: Path) -> None:
    foreign.byte_level(tmp_path / "a")
    char_tokenizer("012").save_pretrained(tmp_path / "b")
    for root in (tmp_path / "a", tmp_path / "b"):
        light = light_tokenizer(root)
        ids = light.encode("12").tolist()
        assert light.decode([*ids, 40_000]) == light.decode([*ids, 40_000], special=True) == "12"


@pytest.mark.parametrize("kind", foreign.KINDS)
def test_a_stop_is_the_token_that_has_this_text_inside_a_text(tmp_path: Path, kind: str) -> None:
    light = light_tokenizer(foreign.KINDS[kind](tmp_path))
    for text in ["?", "<|im_end|>", *(["\n"] if kind in ("byte-level", "metaspace") else [])]:
        before = light.encode("ab").tolist()
        for token in stop_ids([text], light):
            written = light.decode([*before, token], special=True)
            assert written.removeprefix(light.decode(before)).strip(" ") in (text, "") or kind == "wordpiece"
            assert light.decode([*before, token], special=True).endswith(text)
    with pytest.raises(ConfigError, match=r"'ab\?ab' is \d tokens"):
        stop_ids(["ab?ab"], light)


def test_a_stop_in_the_middle_of_a_text_is_not_the_one_at_its_start(tmp_path: Path) -> None:
    light = light_tokenizer(foreign.metaspace(tmp_path))
    inside, first = (light.backend.token_to_id(t) for t in ("42", "▁42"))
    assert light.encode("42").tolist() == [first]
    assert stop_ids(["42"], light) == [inside]
    assert stop_ids([" 42"], light) == [first]
    assert {inside, first} <= set(light.ids_containing("2"))
    assert first in light.ids_containing(" 4"), "a blank that decoding one token drops"


Make = Callable[..., Path]


@pytest.mark.parametrize("make", [foreign.byte_level, foreign.metaspace, foreign.unigram])
def test_control_tokens_spelt_out_become_real_unless_split(tmp_path: Path, make: Make) -> None:
    light = light_tokenizer(make(tmp_path))
    text = "4</s>2<s>"
    real = set(light.encode("</s><s>").tolist()) & light.special_ids
    assert len(real) == 2
    assert real <= set(light.encode(text).tolist())
    split = light.encode(text, split_special_tokens=True)
    assert not set(split.tolist()) & light.special_ids
    assert light.decode(split) == text
    assert light.encode_prompt(text, split_special_tokens=True).tolist() == [
        *light.full("")["input_ids"][:1], *split.tolist()
    ]  # fmt: skip
    with pytest.raises(DataError, match="U\\+FDD0"):
        light.encode("\ufdd0</s>\ufdd1", split_special_tokens=True)


@pytest.mark.parametrize(
    ("normalizer", "cut", "text"),
    [("Lowercase", "isolated", "AB"), (None, "isolated", "aZ"), (None, "removed", "a b"), (None, "isolated", "a</s>")],
)
def test_characters_of_a_foreign_tokenizer_are_read_as_its_file_says(
    tmp_path: Path, normalizer: str | None, cut: str, text: str
) -> None:
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<s>", "</s>", *"abz "])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.normalizer = normalizers.Lowercase() if normalizer else None
    backend.pre_tokenizer = pre_tokenizers.Split(" " if cut == "removed" else Regex(r"[\s\S]"), cut)
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    foreign._save(tmp_path, backend, {"unk_token": "<unk>"})
    light, full = light_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert light.encode(text).tolist() == full(text)["input_ids"]
