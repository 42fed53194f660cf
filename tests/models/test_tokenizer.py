from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from stretto.kernel.errors import DataError
from stretto.models.tokenizer import char_tokenizer, light_char_tokenizer, light_tokenizer


def test_characters_round_trip_through_the_saved_files(tmp_path: Path) -> None:
    char_tokenizer("0123456789+= \n", bos=True).save_pretrained(tmp_path)
    light, full = light_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    text = "12+34= 46\n"
    ids = light.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == full(text, add_special_tokens=False)["input_ids"]
    assert light.decode(ids) == text == full.decode(ids)
    assert (light.pad_id, light.eos_ids) == (0, (1,))
    assert light.decode([*ids, 1, 0]) == text
    assert light.decode([*ids, 1], special=True) == text + "<eos>"


def test_a_character_outside_the_alphabet_raises_instead_of_turning_into_unknown(tmp_path: Path) -> None:
    char_tokenizer("01").save_pretrained(tmp_path)
    with pytest.raises(DataError, match="no token for '2'"):
        light_tokenizer(tmp_path).encode("012")


def test_stop_ids_cover_every_token_that_holds_the_text(tmp_path: Path) -> None:
    char_tokenizer("ab]").save_pretrained(tmp_path)
    light = light_tokenizer(tmp_path)
    assert light.ids_containing("]") == tuple(light.encode("]").tolist())


def test_a_directory_without_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no tokenizer\.json.*save_pretrained"):
        light_tokenizer(tmp_path)


def test_the_light_reader_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    char_tokenizer("01").save_pretrained(tmp_path)
    code = (
        "import sys; from stretto.models.tokenizer import light_tokenizer as l; "
        "import stretto.envs.arithmetic, stretto.envs.build, stretto.envs.scoring; "
        "stretto.envs.base.ENVIRONMENTS.names();"
        f"assert l({str(tmp_path)!r}).decode(l({str(tmp_path)!r}).encode('01')) == '01';"
        "print([m for m in ('torch', 'transformers', 'datasets', 'reasoning_gym', 'sympy') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_the_light_character_tokenizer_is_the_saved_one(tmp_path: Path) -> None:
    char_tokenizer("ab+").save_pretrained(tmp_path)
    saved, light = light_tokenizer(tmp_path), light_char_tokenizer("ab+")
    assert (light.eos_ids, light.pad_id, light.vocab_size) == (saved.eos_ids, saved.pad_id, saved.vocab_size)
    assert light.encode("a+b").tolist() == saved.encode("a+b").tolist()
    assert light.by_character == saved.by_character
    assert light.decode([2, 0, 4, 1], special=True) == saved.decode([2, 0, 4, 1], special=True)


@pytest.mark.parametrize(
    ("own", "shared", "expected"),
    [("/own", "/shared", "/own"), ("", "/shared", "/shared/stretto"), ("", "relative", "{home}/.cache/stretto"),
     ("", "", "{home}/.cache/stretto"), ("~/own", "", "{home}/own")],
)  # fmt: skip
def test_the_cache_is_where_the_environment_says(
    own: str, shared: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stretto.models.tiny import cache_root

    monkeypatch.setenv("STRETTO_CACHE", own)
    monkeypatch.setenv("XDG_CACHE_HOME", shared)
    assert str(cache_root()) == expected.format(home=Path.home())
