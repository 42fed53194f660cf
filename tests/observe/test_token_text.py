from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foreign
from stretto.data.trajectory import Completion, Transcript
from stretto.envs.base import Task
from stretto.models.tokenizer import LightTokenizer, light_tokenizer
from stretto.observe.samples import sample_of, write_evaluation
from stretto.observe.token_text import part_texts

TEXT = "答えは 42 です。 🙂👨‍👩‍👧 naïve\n\n  x , y"


@pytest.fixture(scope="module", params=foreign.KINDS)
def light(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LightTokenizer:
    root: Path = tmp_path_factory.mktemp("text")
    return light_tokenizer(foreign.KINDS[request.param](root))


def split(light: LightTokenizer, ids: Sequence[int]) -> list[str]:
    return part_texts(lambda part: light.decode(part, special=True), ids, range(1, len(ids) + 1))


@pytest.mark.parametrize(
    "text", [TEXT, " 42 42", "42<think> 42 </think>42", "🙂", "\ufffd42\ufffd", "don't do n't , ."]
)
def test_texts_of_single_tokens_are_the_whole_without_loss(light: LightTokenizer, text: str) -> None:
    ids = light.encode_prompt(text).tolist()
    texts = split(light, ids)
    assert "".join(texts) == light.decode(ids, special=True)
    assert len(texts) == len(ids)
    if "\ufffd" not in light.decode(ids, special=True):
        assert not any("\ufffd" in part for part in texts)


def test_a_character_stands_at_the_token_that_completes_it_and_a_blank_at_its_word(tmp_path: Path) -> None:
    light = light_tokenizer(foreign.byte_level(tmp_path / "bytes"))
    ids = light.encode("a🙂b").tolist()
    assert split(light, ids) == ["a", "", "", "", "🙂", "b"]
    assert split(light, ids[:3]) == ["a", "", "\ufffd"], "what is cut short is shown as decoding shows it"
    light = light_tokenizer(foreign.metaspace(tmp_path / "blanks"))
    assert split(light, light.encode("a 42日").tolist()) == ["", "a", " 42", "", "", "日"]
    assert [text for text in split(light, light.encode("x日本語🙂y").tolist()) if text] == [*"x日本語🙂y"]


@given(st.lists(st.integers(0, 305), min_size=1, max_size=60), st.data())
def test_any_ids_in_any_parts_join_to_the_whole(light: LightTokenizer, ids: list[int], data: st.DataObject) -> None:
    inner = data.draw(st.sets(st.integers(1, len(ids))))
    ends = sorted({*inner, len(ids)})
    texts = part_texts(lambda part: light.decode(part, special=True), ids, ends)
    assert "".join(texts) == light.decode(ids, special=True)
    assert len(texts) == len(ends)


def test_the_pieces_of_a_sample_join_to_its_text_and_name_each_sampled_token(
    light: LightTokenizer, tmp_path: Path
) -> None:
    record = Transcript(1, 1)
    record.observe(light.encode_prompt("42 です"))
    written = light.encode(TEXT)
    n = len(written)
    record.sample(Completion(written, np.zeros(n), np.zeros(n), np.zeros(n, np.int32), "stop"))
    record.observe(light.encode("🙂>"))
    trajectory = record.finish(1.0)
    decode = partial(light.decode, special=True)
    sample = sample_of(trajectory, step=1, version=1, decode=decode)
    pieces = sample["pieces"]
    assert "".join(piece["text"] for piece in pieces) == light.decode(trajectory.tokens, special=True)
    assert [piece["mask"] for piece in pieces] == [False, *[True] * n, False]
    assert [piece["id"] for piece in pieces if piece["mask"]] == written.tolist()
    (kept,) = write_evaluation(tmp_path, 1, [(Task(0, written), trajectory)], text=str, decode=decode)
    for role, sampled in (("prompt", False), ("completion", True)):
        assert kept[role] == "".join(piece["text"] for piece in pieces if piece["mask"] == sampled)
